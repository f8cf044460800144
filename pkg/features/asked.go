package features

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Asked is what the operator wrote: gate name → value. It is a flag value: repeated flags are merged and
// for each name the last one wins. Names are checked by Resolve, not here.
type Asked map[string]bool

// Set adds "Name=true,Other=false". The error names the pair that cannot be read.
func (a *Asked) Set(text string) error {
	merged := maps.Clone(*a)
	if merged == nil {
		merged = Asked{}
	}
	for pair := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, found := strings.Cut(pair, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if name == "" {
			return errors.New("missing name of a feature gate")
		}
		if !found {
			return fmt.Errorf("missing bool value for %s", name)
		}
		on, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("invalid value of %s=%s: want true or false", name, value)
		}
		merged[name] = on
	}
	*a = merged
	return nil
}

// String returns the pairs sorted by name, in the form that Set reads.
func (a *Asked) String() string {
	if a == nil {
		return ""
	}
	pairs := make([]string, 0, len(*a))
	for _, name := range slices.Sorted(maps.Keys(*a)) {
		pairs = append(pairs, fmt.Sprintf("%s=%t", name, (*a)[name]))
	}
	return strings.Join(pairs, ",")
}

// Type is the kind of value that the usage text shows.
func (a *Asked) Type() string { return "Name=true|false,..." }
