package nodecleanup

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// A claim or a PersistentVolume that panics, in each round, does not keep the others.
func TestOneThatPanicsDoesNotKeepTheOthers(t *testing.T) {
	objects := []runtime.Object{waiting(1, "bad"), waiting(2, "lost"), leftover(1, "bad"), leftover(2, "lost")}
	inScene(t, func(s *scene) {
		s.react("get", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if action.(clienttesting.GetAction).GetName() == "bad" {
				panic("a node")
			}
			return false, nil, nil
		})
		bad := objects[2].(interface{ GetName() string }).GetName()
		s.react("get", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if action.(clienttesting.GetAction).GetName() == bad {
				panic("a volume")
			}
			return false, nil, nil
		})
		s.pass(2*defaultInterval + defaultVolumeGrace)
		if got := s.count("update persistentvolumeclaims"); got != 1 {
			s.Errorf("%d claims were written, want 1", got)
		}
		if got := s.count("delete persistentvolumes"); got != 1 {
			s.Errorf("%d PersistentVolumes were deleted, want 1", got)
		}
	}, objects...)
}
