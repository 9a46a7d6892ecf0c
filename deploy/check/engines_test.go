package check

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
)

// TestClaim: the containers with a GPU have the same one, of the template that is there.
func TestClaim(t *testing.T) {
	all := build(t, filepath.Join(manifests, "engines"))
	spec := template(t, all).Spec
	require.Len(t, spec.ResourceClaims, 1)
	claim := spec.ResourceClaims[0]
	found := false
	for _, o := range all {
		if c, ok := o.(*resourcev1.ResourceClaimTemplate); ok {
			require.Equal(t, c.Name, *claim.ResourceClaimTemplateName)
			found = true
		}
	}
	require.True(t, found)
	require.Len(t, spec.InitContainers, 3)
	for _, c := range append(spec.Containers, spec.InitContainers[2]) {
		require.Equal(t, []corev1.ResourceClaim{{Name: claim.Name}}, c.Resources.Claims, c.Name)
		require.NotContains(t, c.Resources.Limits, corev1.ResourceName("nvidia.com/gpu"), c.Name)
		require.True(t, *c.SecurityContext.ReadOnlyRootFilesystem, c.Name)
	}
	for _, c := range spec.InitContainers[:2] {
		require.Empty(t, c.Resources.Claims, "%s needs no GPU", c.Name)
	}
}

// TestEngines is the pod of deploy/kubernetes/engines: two engines verify the same weights, and
// when one of them is killed, the other goes on.
func TestEngines(t *testing.T) {
	p := newMachine(t).newPod(ordinary)
	p.spec = template(t, build(t, filepath.Join(manifests, "engines"))).Spec
	store, keeper := p.store(), p.keeper()
	p.does("put", name, "/weights")
	a := p.start("engine-a", p.gpu(), p.command("engine-a")...)
	b := p.start("engine-b", p.gpu(), p.command("engine-b")...)
	a.await("Holding llama, version 1")
	b.await("Holding llama, version 1")
	require.Equal(t, a.out.String(), b.out.String(), "the digest of what they read")
	requireConfined(t, store, keeper, a, b)
	p.held(2)
	a.kill()
	p.held(1)
	p.verified(1)
	p.start("engine-a", p.gpu(), p.command("engine-a")...).await("Holding llama, version 1")
	p.held(2)
}
