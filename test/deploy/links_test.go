package deploy_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
)

var (
	fence   = regexp.MustCompile("(?ms)^```.*?^```$")
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	link    = regexp.MustCompile(`\]\(([^)\s]*)\)`)
)

// pages returns the documents of the repository: path → text without blocks of code.
func pages(t *testing.T) map[string]string {
	t.Helper()
	root, err := cluster.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
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
		all[path] = fence.ReplaceAllString(string(text), "")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// anchors returns what headings can be linked to by, as GitHub makes it.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(text, -1) {
		plain := strings.Map(func(r rune) rune {
			if strings.ContainsRune(",:?.()`/'\"", r) {
				return -1
			}
			return r
		}, strings.ToLower(match[1]))
		found[strings.ReplaceAll(plain, " ", "-")] = true
	}
	return found
}

// Each link between documents leads to a file that exists and to a heading that it has.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	all := pages(t)
	links := 0
	for page, text := range all {
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			links++
			file := page
			if target != "" {
				file = filepath.Join(filepath.Dir(page), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s: %v", page, match[1], err)
				continue
			}
			if anchor != "" && !anchors(all[file])[anchor] {
				t.Errorf("%s links to %s, which has no such heading", page, match[1])
			}
		}
	}
	if links < 50 {
		t.Errorf("only %d links were found in %d pages", links, len(all))
	}
}
