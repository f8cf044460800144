package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/csi-sidecars/external-provisioner/pkg/features"
)

// labels is a flag value "key:value,key:value". Repeated flags are merged.
type labels map[string]string

// Set adds the pairs of text; each has exactly one colon.
func (l *labels) Set(text string) error {
	merged := maps.Clone(*l)
	if merged == nil {
		merged = labels{}
	}
	for item := range strings.SplitSeq(text, ",") {
		parts := strings.Split(item, ":")
		if len(parts) != 2 {
			return fmt.Errorf("%q is not key:value", item)
		}
		merged[strings.TrimSpace(parts[0])] = strings.TrimSpace(parts[1])
	}
	*l = merged
	return nil
}

// String returns the pairs sorted by key, in the form that Set reads.
func (l *labels) String() string {
	if l == nil {
		return ""
	}
	pairs := make([]string, 0, len(*l))
	for _, key := range slices.Sorted(maps.Keys(*l)) {
		pairs = append(pairs, key+":"+(*l)[key])
	}
	return strings.Join(pairs, ",")
}

// Type is the kind of value that the usage text shows.
func (l *labels) Type() string { return "key:value,..." }

// askMaxProcs reads the value of --automaxprocs; what was asked last counts.
func (o *Options) askMaxProcs(text string) error {
	if text == "" { // --automaxprocs= is how some manifests write it
		o.setMaxProcs = true
		return nil
	}
	on, err := strconv.ParseBool(text)
	if err != nil {
		return errors.New("want true or false")
	}
	o.setMaxProcs = on
	return nil
}

func featureUsage() string {
	return "Switch features, may be repeated. Known are:\n" + strings.Join(features.Help(), "\n")
}
