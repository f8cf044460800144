package deploy_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/csi-sidecars/external-provisioner/test/deploy"
)

func TestMetricNamesAreFoundInExpressions(t *testing.T) {
	t.Parallel()
	tests := map[string][]string{
		`up`: {"up"},
		`sum by (class, job) (rate(a_total{class="b_total", x=~"c|d"}[5m])) / b_count > 0.5`: {"a_total", "b_count"},
		`histogram_quantile(0.99, sum by (le) (rate(a_bucket[$__rate_interval])))`:           {"a_bucket"},
		`a{x="1"} unless on (job, instance) b`:                                               {"a", "b"},
		`a unless a offset 15m > 1e3`:                                                        {"a"},
		`label_values(a{name="b"}, namespace)`:                                               {"a"},
		`max(x) * 1000 and on (pod) group_left (y) z`:                                        {"x", "z"},
	}
	for expr, want := range tests {
		if diff := cmp.Diff(want, deploy.MetricNames(expr)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", expr, diff)
		}
	}
}

func TestEachAlertSaysWhatToDo(t *testing.T) {
	t.Parallel()
	severities := map[string]bool{"info": true, "warning": true, "critical": true}
	for _, rule := range deploy.Rules(t) {
		if !strings.HasPrefix(rule.Alert, "CSIProvisioner") || !severities[rule.Labels["severity"]] {
			t.Errorf("alert %q has severity %q", rule.Alert, rule.Labels["severity"])
		}
		for _, name := range []string{"summary", "description", "runbook", "runbook_url"} {
			if rule.Annotations[name] == "" {
				t.Errorf("%s has no %s", rule.Alert, name)
			}
		}
	}
}

func TestThePanelsOfTheDashboardFit(t *testing.T) {
	t.Parallel()
	dashboard := deploy.ReadDashboard(t)
	taken := map[string]string{}
	for _, panel := range dashboard.Panels {
		for x := range panel.GridPos.W {
			for y := range panel.GridPos.H {
				cell := fmt.Sprint(panel.GridPos.X+x, ",", panel.GridPos.Y+y)
				if other := taken[cell]; other != "" {
					t.Fatalf("panels %q and %q overlap", other, panel.Title)
				}
				taken[cell] = panel.Title
			}
		}
		if panel.Type != "row" && (panel.Description == "" || len(panel.Targets) == 0) {
			t.Errorf("panel %q has no description or no query", panel.Title)
		}
		for _, target := range panel.Targets {
			if !strings.Contains(target.Expr, `namespace=~"$namespace", job=~"$job"`) {
				t.Errorf("panel %q does not heed the choice of namespace and job: %s", panel.Title, target.Expr)
			}
		}
	}
}

// promtool says whether the rules are valid, and whether they fire when they should and only then.
func TestTheAlertRulesFire(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("SKIPPED: promtool is not installed (Debian package prometheus)")
	}
	rules := deploy.Folder(t, "monitoring", deploy.RulesFile)
	cases, err := os.ReadFile("testdata/rules.test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules.test.yaml")
	if err := os.WriteFile(file, bytes.Replace(cases, []byte("RULES"), []byte(rules), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"check", "rules", rules}, {"test", "rules", file}} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	for _, rule := range deploy.Rules(t) {
		if !bytes.Contains(cases, []byte(rule.Alert)) {
			t.Errorf("no test makes %s fire", rule.Alert)
		}
	}
}
