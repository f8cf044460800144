package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const help = `csi-provisioner does things.

Usage: csi-provisioner [flags]
       csi-provisioner ask [flags] NAME    asks

Basics:
  --address string (default "/run/socket")
        Where the driver
        listens.
  -v, --v number (default 0)
        Verbosity.

Other:
  --feature-gates Name=true|false,...
        Known are:
        A=true|false (ALPHA)
        B=true|false (BETA)
  -h, --help
        Print this.
`

const wantTable = `
**Basics**

| Flag | Default | Meaning |
|---|---|---|
| ` + "`--address` string | `\"/run/socket\"`" + ` | Where the driver listens. |
| ` + "`-v, --v` number | `0`" + ` | Verbosity. |

**Other**

| Flag | Default | Meaning |
|---|---|---|
| ` + "`--feature-gates`" + ` Name=true\|false,... |  | Known are:<br>A=true\|false (ALPHA)<br>B=true\|false (BETA) |
| ` + "`-h, --help`" + ` |  | Print this. |
`

func TestTable(t *testing.T) {
	t.Parallel()
	got, err := Table(help)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wantTable, got); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

func TestTableRefusesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ help, wantErr string }{
		"no usage line":             {"Basics:\n", "it has no usage line"},
		"no flags":                  {"Usage: x [flags]\n\nBasics:\n", "it has no flags"},
		"text that belongs nowhere": {"Usage: x [flags]\n\nBasics:\n        text\n", `cannot read the line "        text"`},
		"a flag of another form":    {"Usage: x [flags]\n\nBasics:\n  --Address\n", `cannot read the line "  --Address"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := Table(tc.help); err == nil || err.Error() != tc.wantErr {
				t.Errorf("want %q, got %v", tc.wantErr, err)
			}
		})
	}
}

func TestInsert(t *testing.T) {
	t.Parallel()
	got, err := Insert("head\n"+begin+"old\n"+end+"tail\n", "new\n")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("head\n"+begin+"new\n\n"+end+"tail\n", got); diff != "" {
		t.Errorf("page (-want +got):\n%s", diff)
	}
	for _, broken := range []string{"head\n", "head\n" + begin, end + begin} {
		if _, err := Insert(broken, "new\n"); err == nil {
			t.Errorf("%q: want an error", broken)
		}
	}
}

func TestReadmeIsUpToDate(t *testing.T) {
	t.Parallel()
	if err := run(filepath.Join("..", ".."), true); err != nil {
		t.Error(err)
	}
}

func TestRunBringsThePageUpToDate(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	testdata := filepath.Join(root, "cmd", "csi-provisioner", "testdata")
	for file, text := range map[string]string{filepath.Join(testdata, "help.golden"): help, filepath.Join(root, "docs", "reference", "flags.md"): begin + end} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(root, true); err == nil || !strings.Contains(err.Error(), "run `make generate`") {
		t.Errorf("check before: want the hint, got %v", err)
	}
	if err := run(root, false); err != nil {
		t.Error(err)
	}
	if err := run(root, true); err != nil {
		t.Errorf("check after: %v", err)
	}
}
