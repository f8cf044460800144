package deploy

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// Rule is an alert or a recording of a file of Prometheus rules.
type Rule struct {
	Alert       string            `json:"alert"`
	Record      string            `json:"record"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// RulesFile is the file of the alert rules.
const RulesFile = "csi-provisioner.rules.yaml"

// DashboardFile is the file of the Grafana dashboard.
const DashboardFile = "csi-provisioner.dashboard.json"

// Rules returns the alert rules.
func Rules(tb testing.TB) []Rule {
	tb.Helper()
	var file struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []Rule `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.UnmarshalStrict(Read(tb, "monitoring", RulesFile), &file); err != nil {
		tb.Fatal(err)
	}
	var rules []Rule
	for _, group := range file.Groups {
		rules = append(rules, group.Rules...)
	}
	if len(rules) == 0 {
		tb.Fatal("there are no rules")
	}
	return rules
}

// Panel is one panel of the dashboard.
type Panel struct {
	Title       string `json:"title"`
	Description string `json:"description"`
	Type        string `json:"type"`
	Targets     []struct {
		Expr string `json:"expr"`
	} `json:"targets"`
	GridPos struct{ H, W, X, Y int } `json:"gridPos"`
}

// Dashboard is what the tests look at.
type Dashboard struct {
	Title      string  `json:"title"`
	UID        string  `json:"uid"`
	Panels     []Panel `json:"panels"`
	Templating struct {
		List []struct {
			Name  string `json:"name"`
			Query any    `json:"query"`
		} `json:"list"`
	} `json:"templating"`
}

// ReadDashboard returns the dashboard.
func ReadDashboard(tb testing.TB) Dashboard {
	tb.Helper()
	var dashboard Dashboard
	if err := json.Unmarshal(Read(tb, "monitoring", DashboardFile), &dashboard); err != nil {
		tb.Fatal(err)
	}
	return dashboard
}

// Queries returns all expressions of rules and dashboard, by where they stand.
func Queries(tb testing.TB) map[string]string {
	tb.Helper()
	queries := map[string]string{}
	for _, rule := range Rules(tb) {
		queries["rule "+rule.Alert+rule.Record] = rule.Expr
	}
	dashboard := ReadDashboard(tb)
	for _, panel := range dashboard.Panels {
		for i, target := range panel.Targets {
			queries[fmt.Sprintf("panel %q, query %d", panel.Title, i)] = target.Expr
		}
	}
	for _, variable := range dashboard.Templating.List {
		if query, ok := variable.Query.(string); ok && strings.HasPrefix(query, "label_values(") {
			queries["variable "+variable.Name] = query
		}
	}
	return queries
}

var (
	quoted     = regexp.MustCompile(`"[^"]*"`)
	matchers   = regexp.MustCompile(`\{[^}]*\}`)
	clauses    = regexp.MustCompile(`\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)`)
	ranges     = regexp.MustCompile(`\[[^\]]*\]`)
	labelQuery = regexp.MustCompile(`label_values\(\s*([a-zA-Z_:]\w*)[^)]*\)`)
	words      = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*\s*\(?`)
)

// vocabulary are the words of PromQL that stand alone.
var vocabulary = []string{"and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring", "group_left", "group_right", "inf", "nan"}

// MetricNames returns the names of the metrics that an expression of PromQL reads, sorted.
func MetricNames(expr string) []string {
	expr = labelQuery.ReplaceAllString(expr, "$1")
	expr = quoted.ReplaceAllString(expr, "")
	for _, drop := range []*regexp.Regexp{matchers, ranges, clauses} {
		expr = drop.ReplaceAllString(expr, " ")
	}
	names := map[string]bool{}
	for _, at := range words.FindAllStringIndex(expr, -1) {
		word := expr[at[0]:at[1]]
		// A number's exponent or unit is no word.
		if at[0] > 0 && (expr[at[0]-1] >= '0' && expr[at[0]-1] <= '9' || expr[at[0]-1] == '$') {
			continue
		}
		if strings.HasSuffix(word, "(") {
			continue // a function
		}
		if word = strings.TrimSpace(word); !slices.Contains(vocabulary, strings.ToLower(word)) {
			names[word] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// metricRow is a row of the guide's table of metrics; it may name several.
var (
	metricRow  = regexp.MustCompile("(?m)^\\| (`[a-z_*`, ]+) \\| [^|]*\\| [^|]+\\|$")
	metricName = regexp.MustCompile("`([a-z_]+)(\\*?)`")
)

// DocumentedMetrics returns the metrics of the guide's table, those that end in * as prefixes.
func DocumentedMetrics(tb testing.TB) (names, prefixes []string) {
	tb.Helper()
	section, _, _ := strings.Cut(string(Read(tb, "..", "docs", "reference", "metrics.md")), "\n## ")
	for _, row := range metricRow.FindAllStringSubmatch(section, -1) {
		for _, match := range metricName.FindAllStringSubmatch(row[1], -1) {
			if match[2] == "*" {
				prefixes = append(prefixes, match[1])
			} else {
				names = append(names, match[1])
			}
		}
	}
	if len(names) < 20 || len(prefixes) < 2 {
		tb.Fatalf("only %d metrics and %d prefixes were found in the guide", len(names), len(prefixes))
	}
	return names, prefixes
}
