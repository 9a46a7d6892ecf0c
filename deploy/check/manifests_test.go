package check

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// manifests is where they lie.
var manifests = filepath.Join("..", "kubernetes")

// strictly reads one object, and refuses what its type does not have.
func strictly(text []byte) (runtime.Object, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(appsv1.AddToScheme(scheme), batchv1.AddToScheme(scheme), corev1.AddToScheme(scheme), resourcev1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	o, _, err := codecs.UniversalDeserializer().Decode(text, nil, nil)
	return o, err
}

func decode(t *testing.T, text []byte) runtime.Object {
	t.Helper()
	o, err := strictly(text)
	require.NoError(t, err, "%s", text)
	return o
}

// build is what kubectl apply -k would send.
func build(t *testing.T, dir string) (all []runtime.Object) {
	t.Helper()
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	require.NoError(t, err)
	for _, r := range made.Resources() {
		text, err := r.AsYAML()
		require.NoError(t, err)
		all = append(all, decode(t, text))
	}
	return all
}

// template is the pod that is among them.
func template(t *testing.T, all []runtime.Object) corev1.PodTemplateSpec {
	t.Helper()
	for _, o := range all {
		switch o := o.(type) {
		case *appsv1.Deployment:
			require.Equal(t, o.Spec.Selector.MatchLabels, o.Spec.Template.Labels)
			return o.Spec.Template
		case *appsv1.DaemonSet:
			require.Equal(t, o.Spec.Selector.MatchLabels, o.Spec.Template.Labels)
			return o.Spec.Template
		}
	}
	t.Fatal("there is no pod")
	return corev1.PodTemplateSpec{}
}

// withComponent is a copy of the manifests in which the DaemonSet uses the component that is
// commented out.
func withComponent(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(manifests)))
	path := filepath.Join(dir, "daemonset", "kustomization.yaml")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	with := strings.Replace(string(text), "# components:\n#   - ../node-directory", "components:\n  - ../node-directory", 1)
	require.NotEqual(t, string(text), with)
	require.NoError(t, os.WriteFile(path, []byte(with), 0o600))
	return filepath.Join(dir, "daemonset")
}

// refusals are the reasons for which a namespace of that level does not admit the pod.
func refusals(t *testing.T, level api.Level, pod corev1.PodTemplateSpec) []string {
	t.Helper()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	require.NoError(t, err)
	results := evaluator.EvaluatePod(api.LevelVersion{Level: level, Version: api.LatestVersion()}, &pod.ObjectMeta, &pod.Spec)
	require.NotEmpty(t, results)
	return policy.AggregateCheckResults(results).ForbiddenReasons
}

// TestPodSecurity says at which level each pod is admitted, and what keeps it from a better one.
func TestPodSecurity(t *testing.T) {
	// The latter is the level restricted's own word for the former.
	const path, volumes = "hostPath volumes", "restricted volume types"
	for _, c := range []struct {
		name, dir            string
		baseline, restricted []string
	}{
		{"pod", filepath.Join(manifests, "pod"), nil, nil},
		{"engines", filepath.Join(manifests, "engines"), nil, nil},
		{"daemonset", filepath.Join(manifests, "daemonset"), []string{path}, []string{volumes}},
		{"reader", filepath.Join(manifests, "reader"), []string{path}, []string{volumes}},
		{"node-directory", withComponent(t), []string{path}, []string{volumes, "runAsNonRoot != true", "runAsUser=0", "unrestricted capabilities"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := template(t, build(t, c.dir))
			require.ElementsMatch(t, c.baseline, refusals(t, api.LevelBaseline, pod))
			require.ElementsMatch(t, c.restricted, refusals(t, api.LevelRestricted, pod))
		})
	}
	for _, o := range build(t, filepath.Join(manifests, "daemonset")) {
		if n, ok := o.(*corev1.Namespace); ok {
			require.Equal(t, string(api.LevelPrivileged), n.Labels[api.EnforceLevelLabel], "the level that admits the DaemonSet")
			return
		}
	}
	t.Fatal("the DaemonSet has no namespace")
}

// TestContainers is about what Kubernetes does not ask for: the root is read-only, memory is
// bounded, and keeper and fd store have no GPU.
func TestContainers(t *testing.T) {
	for _, dir := range []string{"pod", "daemonset", "reader"} {
		spec := template(t, build(t, filepath.Join(manifests, dir))).Spec
		require.False(t, *spec.AutomountServiceAccountToken)
		require.False(t, spec.HostPID || spec.HostIPC || spec.HostNetwork)
		for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
			require.True(t, *c.SecurityContext.ReadOnlyRootFilesystem, c.Name)
			require.False(t, c.Resources.Requests.Cpu().IsZero(), c.Name)
			require.False(t, c.Resources.Requests.Memory().IsZero(), c.Name)
			require.False(t, c.Resources.Limits.Memory().IsZero(), c.Name)
			gpu := c.Resources.Limits["nvidia.com/gpu"]
			keeps := c.Name == "keeper" || c.Name == "fd-store"
			require.Equal(t, keeps, gpu.IsZero(), c.Name)
			require.Equal(t, keeps, slices.Contains(c.Env, corev1.EnvVar{Name: "NVIDIA_VISIBLE_DEVICES", Value: "void"}), c.Name)
			if c.Name == "fd-store" {
				require.Nil(t, c.LivenessProbe, "it would have the kubelet throw the memory away")
			}
		}
	}
}

// TestProbes: Kubernetes and Prometheus ask the keeper where it answers, which TestPod tries.
func TestProbes(t *testing.T) {
	for _, dir := range []string{"pod", "daemonset"} {
		pod := template(t, build(t, filepath.Join(manifests, dir)))
		all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
		keeper := all[slices.IndexFunc(all, func(c corev1.Container) bool { return c.Name == "keeper" })]
		require.Len(t, keeper.Ports, 1)
		require.Equal(t, []any{"metrics", int32(metricsPort)}, []any{keeper.Ports[0].Name, keeper.Ports[0].ContainerPort})
		require.Equal(t, fmt.Sprintf(":%d", metricsPort), keeper.Args[slices.Index(keeper.Args, "--metrics")+1])
		for _, probe := range []*corev1.Probe{keeper.StartupProbe, keeper.ReadinessProbe, keeper.LivenessProbe} {
			require.Equal(t, []any{"/healthz", "metrics"}, []any{probe.HTTPGet.Path, probe.HTTPGet.Port.StrVal})
		}
		require.Equal(t, map[string]string{
			"prometheus.io/scrape": "true", "prometheus.io/port": fmt.Sprint(metricsPort), "prometheus.io/path": "/metrics",
		}, pod.Annotations)
	}
}

// TestManifestsAreWritten reads the files as they are: kustomize forgives what is there twice.
func TestManifestsAreWritten(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(manifests, "*", "*.yaml"))
	require.NoError(t, err)
	require.Len(t, files, 12)
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		var any any
		require.NoError(t, yaml.UnmarshalStrict(text, &any), f)
		switch filepath.Base(f) {
		case "kustomization.yaml", "patch.yaml":
		default:
			decode(t, text)
		}
	}
	_, err = strictly([]byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: a, nome: b}\n"))
	require.ErrorContains(t, err, `unknown field "metadata.nome"`)
}
