package provision

import (
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// origin puts a bound claim that clones can be made of, and its PersistentVolume.
func (w *world) origin(name string) {
	w.Helper()
	claim := fixture.Claim(name).UID("uid-of-" + name).Class("fast").For(driverName).Bound("pv-of-" + name).Obj()
	w.put(claim)
	w.put(fixture.PV("pv-of-" + name).ProvisionedBy(driverName).Class("fast").BoundTo(claim).Phase(corev1.VolumeBound).Obj())
}

// clone creates a claim that is to be a clone of another.
func (w *world) clone(name, of string) {
	w.Helper()
	w.put(fixture.Claim(name).UID("uid-of-" + name).Class("fast").For(driverName).FromClaim(of).Obj())
}

// The final answers that end an unanswered create are as far apart as the deadline of its own kind of call is long.
func TestFinalErrorsKeepTheDeadlineOfTheirKind(t *testing.T) {
	t.Parallel()
	deadlines := func(cfg *Config) {
		cfg.CreateTimeout = func(req *csi.CreateVolumeRequest) time.Duration {
			if req.GetVolumeContentSource() != nil {
				return time.Minute
			}
			return 20 * time.Second
		}
	}
	script := append([]answer{noAnswer}, slices.Repeat([]answer{final}, 20)...)
	for name, tc := range map[string]struct {
		begin func(w *world)
		end   time.Duration // when the third call begins whose answer counts
	}{
		"a create of an empty volume": {func(w *world) { w.claim("c") }, 128 * time.Second},
		"a clone":                     {func(w *world) { w.origin("src"); w.clone("c", "src") }, 256 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, deadlines, func(t *testing.T, w *world) {
				w.driver.answers(script...)
				tc.begin(w)
				w.pass(tc.end - time.Second)
				if !w.recorded("c") {
					t.Error("ended too soon")
				}
				w.pass(2 * time.Second)
				if w.recorded("c") {
					t.Errorf("not ended after calls at %v", w.driver.at())
				}
			})
		})
	}
}
