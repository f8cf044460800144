package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

// samplesOf returns the lines of the metrics page that begin with one of the names, sorted.
func samplesOf(ctx context.Context, s *sidecar.Sidecar, names ...string) ([]string, error) {
	_, page, err := s.Get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(page) {
		if slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(line, name+"{") }) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	slices.Sort(found)
	return found, nil
}

// A claim is counted once, whatever it took and whichever process ended it; failures say why; what is left to
// others is no failure.
func TestEndToEndMetrics(t *testing.T) {
	t.Parallel()
	const (
		served  = "controller_persistentvolumeclaim_end_to_end_seconds_count"
		failed  = "controller_persistentvolumeclaim_attempts_failed_total"
		ignored = "controller_persistentvolumeclaim_ignored_total"
	)
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{})
	class := w.Class(t, fixture.Class("c"))
	counts := func(s *sidecar.Sidecar, want ...string) {
		t.Helper()
		var got []string
		defer func() {
			if t.Failed() {
				t.Logf("samples (-want +got):\n%s", cmp.Diff(want, got))
			}
		}()
		// A PersistentVolume may be bound before it is counted.
		sidecar.Eventually(t, "the samples are as wanted", func(ctx context.Context) (done bool, err error) {
			got, err = samplesOf(ctx, s, served, failed, ignored)
			return slices.Equal(got, want), err
		})
	}
	line := func(name, label, value string, n int) string {
		return fmt.Sprintf("%s{class=%q,%s=%q} %d", name, class, label, value, n)
	}

	w.Driver.Add(memdriver.Fail("CreateVolume", codes.Internal, 1))
	first := sidecar.Start(t, w.Options("--timeout=1m"))
	w.Claim(t, fixture.Claim("filled").Class(class).From("example.com", "Recipe", "r"))
	w.Event(t, "filled", "Provisioning")
	w.Claim(t, fixture.Claim("data").Class(class))
	w.Bound(t, "data")
	counts(first, line(failed, "reason", "DriverError", 1), line(served, "source", "none", 1), line(ignored, "reason", "Populator", 1))

	hold, release := memdriver.Block("CreateVolume")
	defer release()
	w.Driver.Add(hold)
	w.Claim(t, fixture.Claim("slow").Class(class))
	waiting, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if _, err := w.Driver.WaitStarted(waiting, "CreateVolume", 3); err != nil {
		t.Fatal(err)
	}
	counts(first, line(failed, "reason", "DriverError", 1), line(served, "source", "none", 1), line(ignored, "reason", "Populator", 1))
	first.Kill()
	release()
	second := sidecar.Start(t, w.Options())
	w.Bound(t, "slow")
	w.Event(t, "slow", "ProvisioningSucceeded")
	counts(second, line(served, "source", "none", 1), line(ignored, "reason", "Populator", 1))
}
