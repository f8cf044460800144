package provision

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

func TestSlowRetry(t *testing.T) {
	t.Parallel()
	window := func(cfg *Config) { cfg.RetryMax = 30 * time.Second }
	for name, tc := range map[string]struct {
		edit      func(*Config)
		meanwhile func(w *world) // at 4.5s
		want      []int
	}{
		"the window is five minutes, looked at with back-off": {nil, func(*world) {}, []int{0, 511}},
		"--retry-interval-max bounds the window":              {window, func(*world) {}, []int{0, 31}},
		"a change of the claim ends it at once": {window, func(w *world) {
			w.change("c", func(claim *corev1.PersistentVolumeClaim) { claim.Annotations["a"] = "b" })
		}, []int{0, 5}},
		"a change of the class ends it at once": {window, func(w *world) {
			w.put(fixture.Class("fast").UID("class-1").Provisioner(driverName).Parameter("a", "b").Obj())
		}, []int{0, 5}},
		"a class made anew ends it at once": {window, func(w *world) {
			w.remove(w.api.Class("fast"))
			w.put(fixture.Class("fast").UID("class-2").Provisioner(driverName).Obj())
		}, []int{0, 5}},
		"a change of the secret ends it at the next look": {window, func(w *world) {
			w.put(fixture.Secret("default", "s", map[string]string{"k": "good"}))
		}, []int{0, 7}},
		"a change of the VolumeAttributesClass ends it at the next look": {window, func(w *world) {
			w.put(vac("gold", map[string]string{"iops": "2"}))
		}, []int{0, 7}},
		"a label on the node or anything else does not": {window, func(w *world) {
			w.put(fixture.Class("other").Provisioner(driverName).Obj())
		}, []int{0, 31}},
		"the phase of the claim does not, each look makes the next one later": {window, func(w *world) {
			w.change("c", func(claim *corev1.PersistentVolumeClaim) { claim.Status.Phase = corev1.ClaimPending })
		}, []int{0, 53}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(cfg *Config) {
				cfg.WantsVAC = func() bool { return true }
				if tc.edit != nil {
					tc.edit(cfg)
				}
			}, func(t *testing.T, w *world) {
				w.put(fixture.Class("fast").UID("class-1").Provisioner(driverName).
					Parameter("csi.storage.k8s.io/provisioner-secret-name", "s").Parameter("csi.storage.k8s.io/provisioner-secret-namespace", "default").Obj())
				w.put(fixture.Secret("default", "s", map[string]string{"k": "bad"}))
				w.put(vac("gold", map[string]string{"iops": "1"}))
				w.driver.answers(answer{code: codes.InvalidArgument})
				w.put(fixture.Claim("c").UID("uid-of-c").Class("fast").For(driverName).AttributesClass("gold").Obj())
				w.pass(4500 * time.Millisecond)
				tc.meanwhile(w)
				w.pass(15 * time.Minute)
				w.calls(tc.want...)
				if len(w.events.having("Warning ProvisioningFailed", "infeasible", "retries will be delayed", "rpc error: code = InvalidArgument desc = as told")) != 1 {
					t.Errorf("events: %v", w.events.having())
				}
			})
		})
	}
}

func vac(name string, parameters map[string]string) *storagev1.VolumeAttributesClass {
	v := &storagev1.VolumeAttributesClass{DriverName: driverName, Parameters: parameters}
	v.Name = name
	return v
}

// A claim that waits long is forgotten as soon as it is gone.
func TestASlowClaimThatIsGoneIsForgotten(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(answer{code: codes.InvalidArgument})
		claim := w.claim("c")
		w.pass(2 * time.Second)
		w.remove(claim)
		w.pass(time.Second)
		if n := len(w.c.creates.where(func(create) bool { return true })); n != 0 {
			t.Errorf("%d creates are remembered", n)
		}
		w.pass(10 * time.Minute)
		w.calls(0)
	})
}
