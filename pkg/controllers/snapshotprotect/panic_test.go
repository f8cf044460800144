package snapshotprotect

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/csi-sidecars/external-provisioner/pkg/source"
)

// panicking is a cache that panics for one key.
type panicking string

func (p panicking) ClaimsBySource(key string) []*corev1.PersistentVolumeClaim {
	if key == string(p) {
		panic("an index")
	}
	return nil
}

// Whatever panics for one snapshot keeps its finalizer, and not the others.
func TestASnapshotThatPanicsDoesNotKeepTheOthers(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(w *world, c *Controller){
		"in the cache of claims": func(_ *world, c *Controller) { c.cfg.Claims = panicking(source.SnapshotKey("b", "s")) },
		"while claims are listed": func(w *world, _ *Controller) {
			w.client.PrependReactor("list", "persistentvolumeclaims", panicIn("b"))
		},
		"while it is written": func(w *world, _ *Controller) { w.snap.PrependReactor("get", "volumesnapshots", panicIn("b")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{snapshots: others("a", "b", "c")}
			c := w.controller(t)
			prepare(w, c)
			if err := c.sweep(t.Context(), t.Context()); err == nil {
				t.Error("no error, want the panic")
			}
			if got := w.protectedIn(t); !slices.Equal(got, []string{"b"}) {
				t.Errorf("still protected: namespaces %v, want b", got)
			}
		})
	}
}

// panicIn returns a reaction that panics for one namespace.
func panicIn(namespace string) clienttesting.ReactionFunc {
	return func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetNamespace() == namespace {
			panic("namespace " + namespace)
		}
		return false, nil, nil
	}
}
