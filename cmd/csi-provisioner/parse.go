package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// gone says what replaces a flag that older releases had: name → what to do.
var gone = map[string]string{
	"provisioner":                         "remove it, the driver tells its name",
	"connection-timeout":                  "remove it, see --timeout",
	"enable-leader-election":              "use --leader-election",
	"leader-election-type":                "remove it, the lock is always a Lease; see --leader-election",
	"extraCreateMetadata":                 "use --extra-create-metadata",
	"defaultFSType":                       "use --default-fstype",
	"capacity-controller-deployment-mode": "use --enable-capacity, with --node-deployment where it was local",
	"enable-node-deployment":              "use --node-deployment",
}

// goneLogging are the flags of the old logger; what they did is done by these now.
var (
	goneLogging        = []string{"add_dir_header", "alsologtostderr", "legacy_stderr_threshold_behavior", "log_backtrace_at", "log_dir", "log_file", "log_file_max_size", "logtostderr", "one_output", "skip_headers", "skip_log_headers", "stderrthreshold"}
	goneLoggingReplace = "remove it, the log goes to stderr; see -v, --vmodule and --logging-format"
)

// Parse reads the command line of the command run, without the program's name. The error is pflag.ErrHelp when help
// was asked for; any other one is a single line that says what to do, where that is known.
func (o *Options) Parse(args []string) error {
	w, err := o.parse(args, o.groups())
	if err != nil {
		return err
	}
	if rest := w.rest(runCommand); len(rest) > 0 {
		return fmt.Errorf("%q belongs to no flag: delete it, or write it as the value of its flag, as in --flag=%s", rest[0], rest[0])
	}
	return nil
}

// parse reads the flags of these groups and returns the words beside them.
func (o *Options) parse(args []string, groups []flagGroup) (words, error) {
	all := newFlagSet(groups)
	w, err := parseWords(all, args)
	if errors.Is(err, pflag.ErrHelp) {
		return w, pflag.ErrHelp
	} else if err != nil {
		return w, explain(err, all)
	}
	o.strayBools = w.strayBools
	o.settleLimits(all)
	all.Visit(func(f *pflag.Flag) { o.set = append(o.set, "--"+f.Name+"="+f.Value.String()) })
	return w, nil
}

// newFlagSet returns all flags of the groups. It prints nothing itself.
func newFlagSet(groups []flagGroup) *pflag.FlagSet {
	all := pflag.NewFlagSet("csi-provisioner", pflag.ContinueOnError)
	all.Usage = func() {}
	for _, g := range groups {
		all.AddFlagSet(g.flags)
	}
	return all
}

// explain adds to a parse error what the operator probably meant.
func explain(err error, all *pflag.FlagSet) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return err
	}
	if short := unknown.GetSpecifiedShortnames(); short != "" {
		name, _, _ := strings.Cut(short, "=")
		if hint := hintFor(name, all); hint != "" && len(name) > 1 {
			if all.Lookup(name) != nil {
				hint = "use two dashes: --" + name
			}
			return fmt.Errorf("unknown flag: -%s (%s)", name, hint)
		}
		return err
	}
	if hint := hintFor(unknown.GetSpecifiedName(), all); hint != "" {
		return fmt.Errorf("%w (%s)", err, hint)
	}
	return err
}

// hintFor returns what to use in place of the flag called name, or "".
func hintFor(name string, all *pflag.FlagSet) string {
	if hint, ok := gone[name]; ok {
		return hint
	}
	if slices.Contains(goneLogging, strings.ReplaceAll(name, "-", "_")) {
		return goneLoggingReplace
	}
	best, bestDistance := "", 1+len(name)/3
	all.VisitAll(func(f *pflag.Flag) {
		if d := distance(strings.ReplaceAll(name, "_", "-"), f.Name); d < bestDistance {
			best, bestDistance = f.Name, d
		}
	})
	if best == "" {
		return ""
	}
	return "did you mean --" + best + "?"
}

// distance is how many letters must be changed, added or dropped to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
