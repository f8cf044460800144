package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPagesAreUpToDate(t *testing.T) {
	t.Parallel()
	if err := run(filepath.Join("..", ".."), true); err != nil {
		t.Error(err)
	}
}

const source = `package x

const (
	base = "a.example/"
	// Sum is one.
	Sum = base + "b"
	reasonOne = "One"
	reasonTwo = "Two"
)

func make1(err error) event {
	return event{kind: corev1.EventTypeWarning, reason: "Failed", text: fmt.Sprintf("x %q: %v", 1, err)}
}

func call() {
	reason, why := reasonOne, "w"
	if true {
		reason, why = reasonTwo, "v"
	}
	message := "hello"
	r.Eventf(o, corev1.EventTypeNormal, reason, message, why)
}
`

func parse(t *testing.T, text string) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "x.go", text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func TestEventsAreFoundWhereTheyAreMade(t *testing.T) {
	t.Parallel()
	file := parse(t, source)
	known := map[string]string{}
	for _, c := range constantsOf([]*ast.File{file}) {
		known[c.name] = c.value
	}
	got, err := eventsOf(file, known)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"| `Failed` | Warning | x …: … |\n", "| `One` | Normal | hello |\n", "| `Two` | Normal | hello |\n"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	unknown := parse(t, "package x\nfunc f() { r.Event(o, corev1.EventTypeNormal, g(), \"x\") }\n")
	if _, err := eventsOf(unknown, known); err == nil || !strings.Contains(err.Error(), "cannot resolve the reason of an event in f") {
		t.Errorf("a reason that is computed: got %v", err)
	}
}

func TestConstantsAreResolved(t *testing.T) {
	t.Parallel()
	got := constantsOf([]*ast.File{parse(t, source)})
	if len(got) != 4 || got[1] != (constant{"Sum", "a.example/b", "Sum is one."}) {
		t.Errorf("got %q", got)
	}
}

func TestAnAlertNeedsItsRunbook(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	folder := filepath.Join(root, "deploy", "monitoring")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	rules := "groups: [{rules: [{alert: Boom, expr: up, annotations: {runbook_url: URL}}]}]"
	for url, wantErr := range map[string]bool{RunbookURL + "boom": false, RunbookURL + "bang": true} {
		if err := os.WriteFile(filepath.Join(folder, "csi-provisioner.rules.yaml"), []byte(strings.Replace(rules, "URL", "'"+url+"'", 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		text, err := Runbooks(root)
		if (err != nil) != wantErr || !wantErr && !strings.Contains(text, "\n## Boom\n") {
			t.Errorf("%s: got %q, %v", url, text, err)
		}
	}
}
