package e2e

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/csi-sidecars/external-provisioner/test/deploy"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

// ofOthers are metrics in rules and dashboard that csi-provisioner does not serve: Prometheus makes up, the others
// come from kube-state-metrics.
var ofOthers = []string{
	"up", "kube_pod_container_status_ready", "kube_pod_status_phase", "kube_persistentvolumeclaim_status_phase", "kube_persistentvolumeclaim_info",
}

// seldom are metrics that come only with an event that this test does not make.
var seldom = []string{"leader_election_slowpath_total", "controller_panics_recovered_total"}

var (
	typeLine   = regexp.MustCompile(`(?m)^# TYPE ([a-zA-Z_:][\w:]*) (\w+)$`)
	sampleLine = regexp.MustCompile(`(?m)^([a-zA-Z_:][\w:]*)[{ ]`)
)

// Everything that alerts, dashboard and guide speak of is served, and the guide speaks of everything that is.
func TestAlertsDashboardAndGuideKnowTheMetrics(t *testing.T) {
	t.Parallel()
	page := scrapeAfterWork(t)
	samples := map[string]bool{}
	for _, match := range sampleLine.FindAllStringSubmatch(page, -1) {
		samples[match[1]] = true
	}
	for where, query := range deploy.Queries(t) {
		names := deploy.MetricNames(query)
		if len(names) == 0 {
			t.Errorf("%s reads no metric: %s", where, query)
		}
		for _, name := range names {
			if !samples[name] && !slices.Contains(ofOthers, name) && !slices.Contains(seldom, name) {
				t.Errorf("%s reads %s, which is not served", where, name)
			}
		}
	}
	families := map[string]bool{}
	for _, match := range typeLine.FindAllStringSubmatch(page, -1) {
		families[match[1]] = true
	}
	names, prefixes := deploy.DocumentedMetrics(t)
	for _, name := range names {
		if !families[name] && !slices.Contains(seldom, name) {
			t.Errorf("the guide has %s, which is not served", name)
		}
	}
	for _, family := range slices.Sorted(maps.Keys(families)) {
		if !slices.Contains(names, family) && !slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(family, prefix) }) {
			t.Errorf("%s is served, and the guide does not have it", family)
		}
	}
}

// scrapeAfterWork lets a leader do a bit of everything, good and bad, and returns its metrics.
func scrapeAfterWork(t *testing.T) string {
	t.Helper()
	p := play{
		driver: memdriver.Config{Topology: map[string]string{zoneKey: "a"}},
		args:   append(slices.Concat(election, publishing), "--capacity-ownerref-level=-1", "--max-creates-per-source=10"),
		env:    nodeName,
	}
	w := openStage(t, p, shippedRights(t, baseRights, "rbac-topology.yaml", "rbac-leader-election.yaml", "rbac-capacity.yaml", "rbac-snapshots.yaml"))
	w.node(w.Namespace, p.driver.Topology)
	w.Class(t, fixture.Class("late").WaitForFirstConsumer())
	slow, release := memdriver.Block("CreateVolume")
	defer release()
	w.Driver.Add(memdriver.Fail("DeleteVolume", codes.Internal, 1), memdriver.Fail("CreateVolume", codes.Internal, 1), slow)
	w.Claim(t, fixture.Claim("data").Class(w.class()))
	sidecar.Eventually(t, "the operation is counted", func(ctx context.Context) (bool, error) {
		_, page, err := w.sidecar.Get(ctx, "/metrics")
		return strings.Contains(page, "controller_operations_in_flight 1"), err
	})
	release()
	w.Bound(t, "data")
	w.DeleteClaim(t, "data")
	w.Claim(t, fixture.Claim("filled").Class(w.class()).From("example.com", "Recipe", "r"))
	w.Event(t, "filled", "Provisioning")
	w.DeleteClaim(t, "filled")
	w.Empty(t)
	w.capacityObjects(1)
	// A scrape counts itself when it is over: the earlier ones are in this.
	_, page, err := w.sidecar.Get(t.Context(), "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	return page
}
