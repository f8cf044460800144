package deploy_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/csi-sidecars/external-provisioner/test/deploy"
)

// oldFlags are those of external-provisioner v6.4; all others are ours.
var oldFlags = strings.Fields(`
	csi-address kubeconfig master kube-api-qps kube-api-burst version automaxprocs feature-gates
	volume-name-prefix volume-name-uuid-length default-fstype extra-create-metadata controller-publish-readonly
	prevent-volume-mode-conversion strict-topology immediate-topology
	timeout retry-interval-start retry-interval-max worker-threads cloning-protection-threads capacity-threads
	snapshot-orphan-sweep-interval
	enable-capacity capacity-ownerref-level capacity-poll-interval capacity-for-immediate-binding kube-api-capacity-qps
	kube-api-capacity-burst
	node-deployment node-deployment-immediate-binding node-deployment-base-delay node-deployment-max-delay
	leader-election leader-election-namespace leader-election-lease-duration leader-election-renew-deadline
	leader-election-retry-period leader-election-labels
	http-endpoint metrics-address metrics-path enable-pprof
	v vmodule logging-format log-flush-frequency log-text-split-stream log-json-split-stream log-text-info-buffer-size
	log-json-info-buffer-size help`)

// flag matches a flag's line of the usage text, and a row of the guide's table.
var (
	flag    = regexp.MustCompile(`(?m)^\s+(?:-\w, )?--([a-z0-9-]+)`)
	flagRow = regexp.MustCompile("(?m)^\\| `--([a-z0-9-]+)` \\|")
)

func TestTheGuideHasEachNewFlagAndNoOther(t *testing.T) {
	t.Parallel()
	var want []string
	for _, match := range flag.FindAllStringSubmatch(helpText(t), -1) {
		if !slices.Contains(oldFlags, match[1]) {
			want = append(want, match[1])
		}
	}
	_, text, _ := strings.Cut(string(deploy.Read(t, "..", "docs", "differences.md")), "\n## New flags\n")
	section, _, _ := strings.Cut(text, "\n## ")
	var got []string
	for _, match := range flagRow.FindAllStringSubmatch(section, -1) {
		got = append(got, match[1])
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Errorf("new flags %q, in the guide %q", want, got)
	}
}

func TestTheGuideNamesEachFile(t *testing.T) {
	t.Parallel()
	text := string(deploy.Read(t, "README.md"))
	for _, object := range deploy.Objects(t, "*.yaml") {
		if !strings.Contains(text, "`"+object.File+"`") {
			t.Errorf("the guide does not name %s", object.File)
		}
	}
	for _, file := range []string{deploy.RulesFile, deploy.DashboardFile} {
		if !strings.Contains(text, file) {
			t.Errorf("the guide does not name %s", file)
		}
	}
}
