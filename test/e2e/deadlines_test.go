package e2e

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

// Calls that take longer than --timeout end well when their kind has a longer deadline: one call each, no repetition.
func TestEachKindOfCallHasTheDeadlineOfItsFlag(t *testing.T) {
	t.Parallel()
	s := openStage(t, play{}, shippedRights(t, baseRights, "rbac-snapshots.yaml", "rbac-topology.yaml"),
		"--timeout=3s", "--create-timeout=1m", "--restore-timeout=1m", "--clone-timeout=1m", "--delete-timeout=1m")
	const longer = 4 * time.Second
	s.Driver.Add(memdriver.Slow("CreateVolume", longer), memdriver.Slow("DeleteVolume", longer))
	class := s.Class(t, fixture.Class("c"))
	s.Claim(t, fixture.Claim("data").Class(class))
	s.snapshotOf("snap", "data")
	s.Claim(t, fixture.Claim("restored").Class(class).FromSnapshot("snap"))
	s.Claim(t, fixture.Claim("cloned").Class(class).FromClaim("data"))
	for _, name := range []string{"restored", "cloned"} {
		s.Bound(t, name)
	}
	for _, name := range []string{"restored", "cloned", "data"} {
		s.DeleteClaim(t, name)
	}
	s.Empty(t)
	for _, method := range []string{"CreateVolume", "DeleteVolume"} {
		calls := s.Driver.Calls(method)
		if len(calls) != 3 {
			t.Errorf("%d calls of %s, want one for each of three claims", len(calls), method)
		}
		for _, call := range calls {
			if call.Code != codes.OK {
				t.Errorf("%s, want OK", call)
			}
		}
	}
}

// A shorter deadline for one kind cuts its calls off, and no others.
func TestAShortDeadlineIsForItsKindAlone(t *testing.T) {
	t.Parallel()
	s := openStage(t, play{}, shippedRights(t, baseRights, "rbac-snapshots.yaml", "rbac-topology.yaml"), "--timeout=1m", "--create-timeout=1s")
	s.Driver.Add(memdriver.Hang("CreateVolume", 1), memdriver.Rule{
		Method: "CreateVolume", Delay: 2 * time.Second, When: func(call memdriver.Call) bool { return call.Create().GetVolumeContentSource() != nil },
	})
	class := s.Class(t, fixture.Class("c"))
	s.Claim(t, fixture.Claim("data").Class(class))
	s.Bound(t, "data")
	first := s.Driver.Calls("CreateVolume")[0]
	if first.Code != codes.DeadlineExceeded && first.Code != codes.Canceled {
		t.Errorf("%s, want the end of its deadline", first)
	}
	s.Claim(t, fixture.Claim("cloned").Class(class).FromClaim("data"))
	s.Bound(t, "cloned")
	if calls := s.Driver.Calls("CreateVolume"); calls[len(calls)-1].Code != codes.OK || calls[len(calls)-2].Create().GetVolumeContentSource() != nil {
		t.Errorf("the last two calls are %s and %s, want one good one of the clone", calls[len(calls)-2], calls[len(calls)-1])
	}
}
