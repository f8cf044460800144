package e2e

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

func TestAnIdleSidecarStopsAtOnce(t *testing.T) {
	t.Parallel()
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{})
	process := sidecar.Start(t, w.Options())
	process.MustBeReady(t)
	process.Terminate()
	if code := process.Exits(t, soon); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

// A stop waits for the call at hand and for its PersistentVolume, so that the volume is not forgotten.
func TestAStopWaitsForTheCallAndItsVolume(t *testing.T) {
	t.Parallel()
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{})
	rule, release := memdriver.Block("CreateVolume")
	w.Driver.Add(rule)
	process := sidecar.Start(t, w.Options("--timeout=1m"))
	w.Claim(t, fixture.Claim("data").Class(w.Class(t, fixture.Class("c"))))
	if _, err := w.Driver.WaitStarted(t.Context(), "CreateVolume", 1); err != nil {
		t.Fatal(err)
	}
	process.Terminate()
	process.Says(t, "Stopping", soon)
	w.Claim(t, fixture.Claim("too-late").Class(w.Class(t, fixture.Class("d"))))
	release()
	if code := process.Exits(t, soon); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	pvs, err := w.PVs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	volumes := w.Driver.Volumes()
	if len(pvs) != 1 || len(volumes) != 1 || volumes[0].Name != pvs[0] {
		t.Errorf("PVs %v and volumes %v, want one of each of one name", pvs, volumes)
	}
	for _, call := range w.Driver.Calls("CreateVolume") {
		if call.Code != codes.OK {
			t.Errorf("call %v, want OK", call)
		}
	}
}

// A driver that goes away for a while costs a pause and nothing else.
func TestADriverThatRestartsIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{})
	class := w.Class(t, fixture.Class("c"))
	process := sidecar.Start(t, w.Options())
	w.Claim(t, fixture.Claim("before").Class(class))
	w.Bound(t, "before")
	w.Driver.Stop()
	w.Claim(t, fixture.Claim("meanwhile").Class(class))
	w.DeleteClaim(t, "before")
	if err := w.Driver.Start(); err != nil {
		t.Fatal(err)
	}
	w.Bound(t, "meanwhile")
	if err := w.Driver.WaitVolumes(t.Context(), 1); err != nil {
		t.Error(err)
	}
	if !process.Running() {
		t.Error("the sidecar did not outlive its driver's restart")
	}
}

func TestADriverOfAnotherNameEndsTheProcess(t *testing.T) {
	t.Parallel()
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{})
	process := sidecar.Start(t, w.Options())
	process.MustBeReady(t)
	w.Driver.Change(func(cfg *memdriver.Config) { cfg.Name = "other.csi.example.com" })
	if err := w.Driver.Restart(); err != nil {
		t.Fatal(err)
	}
	if code := process.Exits(t, soon); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	process.Says(t, "other.csi.example.com", soon)
}
