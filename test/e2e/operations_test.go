package e2e

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

// operation is one entry of the JSON output.
type operation struct {
	Lease, State, Claim, Volume, LastAnswer string
}

// operationsOf runs the command with the sidecar's arguments and rights.
func operationsOf(t *testing.T, o sidecar.Options, socket string) []operation {
	t.Helper()
	code, stdout, stderr := runCommand(t, o, "operations", socket, "-o", "json")
	var report struct{ Operations []operation }
	if err := json.Unmarshal([]byte(stdout), &report); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v: %s%s", code, err, stdout, stderr)
	}
	return report.Operations
}

// What is in flight is listed, and ended by hand.
func TestOperationsAreListedAndForgotten(t *testing.T) {
	t.Parallel()
	s, o := explainStage(t, explainCase{})
	socket := "--csi-address=" + s.Driver.Socket()
	sidecar.Start(t, o)
	if got := operationsOf(t, o, socket); len(got) != 0 {
		t.Fatalf("operations of an idle sidecar: %v", got)
	}
	hold, release := memdriver.Block("CreateVolume")
	defer release()
	hold.Code, hold.Times = codes.DeadlineExceeded, 1
	s.Driver.Add(hold, memdriver.Fail("CreateVolume", codes.DeadlineExceeded, 0))
	claim := s.Claim(t, fixture.Claim("slow").Class(s.class()))
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if _, err := s.Driver.WaitStarted(ctx, "CreateVolume", 1); err != nil {
		t.Fatal(err)
	}
	got := operationsOf(t, o, socket)
	if len(got) != 1 || got[0].State != "InFlight" || got[0].Claim != s.Namespace+"/slow" || got[0].Volume != "pvc-"+string(claim.UID) {
		t.Fatalf("operations: %v", got)
	}
	code, stdout, stderr := runCommand(t, o, "operations", socket)
	if code != 0 || !strings.Contains(stdout, got[0].Lease) || !strings.Contains(stdout, "LAST ANSWER") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	release()
	s.Event(t, "slow", "ProvisioningFailed")
	code, stdout, stderr = runCommand(t, o, "operations", socket, "forget", got[0].Lease)
	if code != 0 || !strings.Contains(stdout, "pvc-"+string(claim.UID)) {
		t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
	}
	s.Event(t, "slow", "OperationForgotten")
	s.Driver.ClearRules()
	s.Bound(t, "slow")
	// A mistake ends nothing.
	code, _, stderr = runCommand(t, o, "operations", socket, "forget", "no-such-lease")
	if code != 1 || !strings.Contains(stderr, `no Lease no-such-lease says an operation`) {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	for _, wrong := range []string{"forgt", "forget"} {
		if code, _, _ := runCommand(t, o, "operations", socket, wrong); code != 2 {
			t.Errorf("%q: exit code %d, want 2", wrong, code)
		}
	}
}
