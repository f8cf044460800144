package deploy_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/deploy"
)

var (
	flagSpan   = regexp.MustCompile("`--([a-z][a-z0-9-]*)[=`]")
	makeSpan   = regexp.MustCompile("(?m)(?:`|^\\$? ?)make ([a-z0-9-]+)")
	target     = regexp.MustCompile(`(?m)^([a-z0-9-]+):`)
	applied    = regexp.MustCompile(`\s-f (\S+\.yaml)`)
	applyLine  = regexp.MustCompile(`(?m)^.*kubectl (?:apply|create|delete) .*$`)
	metricSpan = regexp.MustCompile("`((?:controller|csi_sidecar|csistoragecapacities|leader_election|workqueue|driver)_[a-z_]+)`")
)

// foreignFlags are named by documents though no help text has them: flags that are gone, and placeholders.
var foreignFlags = []string{"provisioner", "alsologtostderr", "flag", "help", "dir", "registration"}

// wholePages returns the documents as they are: path below the repository → text.
func wholePages(t *testing.T) (root string, all map[string]string) {
	t.Helper()
	root, err := cluster.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	all = map[string]string{}
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "bin"):
			return filepath.SkipDir
		case filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(root, path)
		all[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return root, all
}

// Each flag, make target, manifest and metric that a document names exists.
func TestDocumentsNameWhatExists(t *testing.T) {
	t.Parallel()
	root, all := wholePages(t)
	flags := map[string]bool{}
	goldens, err := filepath.Glob(filepath.Join(root, "cmd", "csi-provisioner", "testdata", "*help.golden"))
	if err != nil || len(goldens) == 0 {
		t.Fatalf("no help texts: %v", err)
	}
	for _, golden := range goldens {
		text, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range flag.FindAllStringSubmatch(string(text), -1) {
			flags[match[1]] = true
		}
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]bool{}
	for _, match := range target.FindAllStringSubmatch(string(makefile), -1) {
		targets[match[1]] = true
	}
	metrics, _ := deploy.DocumentedMetrics(t)

	found := map[string]int{}
	for _, page := range slices.Sorted(maps.Keys(all)) {
		text := all[page]
		for _, match := range flagSpan.FindAllStringSubmatch(text, -1) {
			found["flags"]++
			if !flags[match[1]] && !slices.Contains(foreignFlags, match[1]) {
				t.Errorf("%s names the flag --%s, which does not exist", page, match[1])
			}
		}
		for _, match := range makeSpan.FindAllStringSubmatch(text, -1) {
			found["targets"]++
			if !targets[match[1]] {
				t.Errorf("%s names make %s, which the Makefile does not have", page, match[1])
			}
		}
		for _, line := range applyLine.FindAllString(text, -1) {
			for _, match := range applied.FindAllStringSubmatch(line, -1) {
				found["manifests"]++
				if _, err := os.Stat(filepath.Join(root, match[1])); err != nil {
					t.Errorf("%s: %q: %v", page, line, err)
				}
			}
		}
		for _, match := range metricSpan.FindAllStringSubmatch(text, -1) {
			found["metrics"]++
			if name := match[1]; name != "driver_name" && !slices.Contains(metrics, name) {
				t.Errorf("%s names the metric %s, which is not in the reference", page, name)
			}
		}
	}
	for what, least := range map[string]int{"flags": 100, "targets": 15, "manifests": 4, "metrics": 20} {
		if found[what] < least {
			t.Errorf("only %d %s were found in the documents, want at least %d", found[what], what, least)
		}
	}
}

// Each reason in the first column of a table of events, and each that a page calls an event, is one that is recorded.
func TestDocumentsNameEventsThatAreRecorded(t *testing.T) {
	t.Parallel()
	_, all := wholePages(t)
	reasons := map[string]bool{}
	for _, match := range regexp.MustCompile("(?m)^\\| `([A-Z][A-Za-z]+)` \\|").FindAllStringSubmatch(all[filepath.Join("docs", "reference", "events.md")], -1) {
		reasons[match[1]] = true
	}
	spans := regexp.MustCompile("(?:[Ee]vents?|Warning|Normal) `([A-Z][A-Za-z]+)`")
	found := 0
	for page, text := range all {
		for _, match := range spans.FindAllStringSubmatch(strings.Join(strings.Fields(text), " "), -1) {
			found++
			if !reasons[match[1]] {
				t.Errorf("%s names the event %s, which is not recorded", page, match[1])
			}
		}
	}
	if len(reasons) < 8 || found < 8 {
		t.Errorf("found %d reasons and %d mentions, want more", len(reasons), found)
	}
}
