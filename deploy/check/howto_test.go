package check

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// blocks are the blocks of a page that are of that language.
func blocks(t *testing.T, page, language string) (all [][]byte) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", page))
	require.NoError(t, err)
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

// TestBroadcastJob reads the Job of docs/howto-broadcast.md as the API server does. Its pods have to
// find the first of them by name, and each has to be told how many there are.
func TestBroadcastJob(t *testing.T) {
	all := blocks(t, "howto-broadcast.md", "yaml")
	require.Len(t, all, 1)
	objects := bytes.Split(all[0], []byte("---\n"))
	require.Len(t, objects, 2)
	service, ok := decode(t, objects[0]).(*corev1.Service)
	require.True(t, ok)
	job, ok := decode(t, objects[1]).(*batchv1.Job)
	require.True(t, ok)
	pod := job.Spec.Template

	require.Equal(t, batchv1.IndexedCompletion, *job.Spec.CompletionMode)
	require.Equal(t, *job.Spec.Completions, *job.Spec.Parallelism, "all ranks run at once")
	require.Equal(t, map[string]string{"job-name": job.Name}, pod.Labels, "the only value that the label may have")
	require.Equal(t, pod.Labels, service.Spec.Selector)
	require.Equal(t, corev1.ClusterIPNone, service.Spec.ClusterIP, "pods have names by a service without an address alone")
	require.True(t, service.Spec.PublishNotReadyAddresses)
	require.Equal(t, service.Name, pod.Spec.Subdomain)
	require.NotEqual(t, corev1.RestartPolicyAlways, pod.Spec.RestartPolicy, "which a Job may not have")

	require.Len(t, pod.Spec.Containers, 1)
	command := pod.Spec.Containers[0].Args[0]
	require.Contains(t, command, "--nnodes "+strconv.Itoa(int(*job.Spec.Completions))+" ")
	require.Contains(t, command, "--node_rank $JOB_COMPLETION_INDEX ", "which an indexed Job sets")
	require.Contains(t, command, "--master_addr "+job.Name+"-0."+service.Name+" ")
	socket := regexp.MustCompile(`--socket (\S+)`).FindStringSubmatch(command)
	require.Equal(t, pod.Spec.Containers[0].VolumeMounts[0].MountPath, filepath.Dir(socket[1]))
	require.Equal(t, pod.Spec.Volumes[0].Name, pod.Spec.Containers[0].VolumeMounts[0].Name)
}
