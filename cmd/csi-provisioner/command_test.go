package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

func TestCommandOf(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		want string
		err  []string // parts of the error; none: there is no error
	}{
		"nothing":                        {want: "run"},
		"flags alone":                    {args: []string{"--csi-address=/x", "-v", "5", "--timeout", "3s"}, want: "run"},
		"the default, written":           {args: []string{"run", "--csi-address=/x"}, want: "run"},
		"a command after the flags":      {args: []string{"--csi-address=/x", "--leader-election", "explain", "c"}, want: "explain"},
		"a command between the flags":    {args: []string{"-v5", "explain", "--leader-election", "c"}, want: "explain"},
		"a command after its own flags":  {args: []string{"-n", "ns", "-o", "json", "explain", "c"}, want: "explain"},
		"a command after a stray bool":   {args: []string{"--leader-election", "true", "explain", "c"}, want: "explain"},
		"a command after --":             {args: []string{"--leader-election", "--", "explain"}, want: "explain"},
		"a command before help":          {args: []string{"explain", "--help"}, want: "explain"},
		"a command before a wrong flag":  {args: []string{"explain", "--nosuch"}, want: "explain"},
		"a flag's value that looks like": {args: []string{"--volume-name-prefix", "explain"}, want: "run"},
		"empty words of templates":       {args: []string{"", "--leader-election", " ", ""}, want: "run"},
		"a wrong flag":                   {args: []string{"--nosuch", "explain"}, want: "run"},
		"the version":                    {args: []string{"version"}, want: "version"},
		"help":                           {args: []string{"help"}, want: "help"},
		"a typing error":                 {args: []string{"--leader-election", "exlpain", "c"}, err: []string{`"exlpain"`, "did you mean explain?"}},
		"a command in capitals":          {args: []string{"Explain"}, err: []string{`"Explain"`, "did you mean explain?"}},
		"a word that is no command":      {args: []string{"--timeout=3s", "somewhere"}, err: []string{`"somewhere"`, "delete it", "run, explain, operations, audit"}},
		"true after no boolean flag":     {args: []string{"--timeout", "3s", "true"}, err: []string{`"true"`, "delete it"}},
		"an argument with a blank":       {args: []string{"--leader-election ", "c"}, want: "run"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := commandOf(tc.args)
			if got != tc.want || (err != nil) != (len(tc.err) > 0) {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
			for _, part := range tc.err {
				if err != nil && !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not mention %q", err, part)
				}
			}
		})
	}
}

func TestParseWords(t *testing.T) {
	t.Parallel()
	got, err := parseWords(newFlagSet(NewOptions().groups()), []string{
		"a", "--leader-election", "false", "", "--strict-topology=true", "true", "--feature-gates=A=true", "--timeout", "3s", "b", "--automaxprocs", "true", "--", "--enable-capacity", "", "false",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := words{
		all:        []string{"a", "true", "b", "--enable-capacity", "false"},
		strayBools: map[string]string{"leader-election": "false", "automaxprocs": "true"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(words{})); diff != "" {
		t.Errorf("words (-want +got):\n%s", diff)
	}
}

// A word that is left over must never start a second sidecar: it would take over the lease of the pod it was typed in.
func TestLeftoverWordsStartNothing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"a typing error":           {args: []string{"--leader-election", "exlpain", "claim"}, want: "did you mean explain?"},
		"words after run":          {args: []string{"run", "--leader-election", "claim"}, want: `"claim" belongs to no flag`},
		"flags after two dashes":   {args: []string{"run", "--", "--leader-election"}, want: `"--leader-election" belongs to no flag`},
		"a word with the version":  {args: []string{"versin", "--version"}, want: "did you mean version?"},
		"true after a flag's text": {args: []string{"--csi-address=/x", "true"}, want: `"true"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := start(t, "fail", nil, tc.args...).wait(t)
			if got.code != exitUsage || !strings.Contains(got.stderr, tc.want) || !strings.Contains(got.lastWords, tc.want) || strings.Contains(got.stderr, "Version") {
				t.Errorf("exit %d, stderr %q, termination message %q, want %d and %q, and nothing started", got.code, got.stderr, got.lastWords, exitUsage, tc.want)
			}
		})
	}
}

func TestVersionAndHelpAreCommands(t *testing.T) {
	t.Parallel()
	if got, want := start(t, "fail", nil, "--leader-election", "version").wait(t), start(t, "fail", nil, "--version").wait(t); got.code != exitOK || got.stdout != want.stdout || got.stdout == "" {
		t.Errorf("version: exit %d, %q, want %q", got.code, got.stdout, want.stdout)
	}
	if got, want := start(t, "fail", nil, "help").wait(t), start(t, "fail", nil, "--help").wait(t); got.code != exitOK || got.stdout != want.stdout || got.stdout == "" {
		t.Errorf("help: exit %d, %q, want %q", got.code, got.stdout, want.stdout)
	}
}

// The command is found with the flags of explain: those of the other commands must be among them, of the same kind.
func TestExplainHasTheFlagsOfAllCommands(t *testing.T) {
	t.Parallel()
	all := newFlagSet(newExplainOptions().allGroups())
	for command, own := range map[string]*pflag.FlagSet{auditCommand: newAuditOptions().own, operationsCommand: newOperationsOptions().own} {
		own.VisitAll(func(f *pflag.Flag) {
			if same := all.Lookup(f.Name); same == nil || same.Shorthand != f.Shorthand || same.NoOptDefVal != f.NoOptDefVal {
				t.Errorf("explain lacks --%s of %s", f.Name, command)
			}
		})
	}
}
