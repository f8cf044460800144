package features

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"
)

const (
	topology      featuregate.Feature = "Topology"
	attributes    featuregate.Feature = "VolumeAttributesClass"
	crossSource   featuregate.Feature = "CrossNamespaceVolumeDataSource"
	releaseOnExit featuregate.Feature = "ReleaseLeaderElectionOnExit"
)

var specs = map[featuregate.Feature]featuregate.FeatureSpec{
	topology:      {Default: true, PreRelease: featuregate.GA},
	attributes:    {Default: true, PreRelease: featuregate.GA},
	crossSource:   {Default: false, PreRelease: featuregate.Alpha},
	releaseOnExit: {Default: false, PreRelease: featuregate.Alpha},
}

// Gates are the resolved feature gates of one process. The zero value has everything off; Resolve(nil)
// gives the defaults.
type Gates struct {
	// Topology off means: behave as if the driver had no topology capability.
	Topology bool
	// VolumeAttributesClass passes the parameters of a claim's VolumeAttributesClass to the driver.
	VolumeAttributesClass bool
	// VolumeAttributesClassSet says that the operator chose VolumeAttributesClass: then it is not switched
	// off when the API server lacks that API.
	VolumeAttributesClassSet bool
	// CrossNamespaceVolumeDataSource admits sources of other namespaces that a ReferenceGrant allows.
	CrossNamespaceVolumeDataSource bool
	// ReleaseLeaderElectionOnExit is accepted and changes nothing: the lease is always released on a clean stop.
	ReleaseLeaderElectionOnExit bool
}

// Resolve applies what was asked to the defaults. The notes, in order of gate name, are for the log: gates
// that are ignored and gates that will go. The error names each unknown gate and those that are known.
func Resolve(asked Asked) (Gates, []string, error) {
	var (
		notes   []string
		unknown []string
		errs    []error
		ours    = map[string]bool{}
		set     = featuregate.NewFeatureGate()
	)
	if err := set.Add(specs); err != nil {
		return Gates{}, nil, fmt.Errorf("register feature gates: %w", err)
	}
	known := set.GetAll()
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		value := asked[name]
		spec, isOurs := known[featuregate.Feature(name)]
		always, isRetired := retired[name]
		switch {
		case isOurs:
			ours[name] = value
			if spec.PreRelease == featuregate.GA {
				notes = append(notes, fmt.Sprintf("feature gate %s is generally available and will be removed: setting it to %t works still", name, value))
			}
		case isRetired && !value:
			errs = append(errs, fmt.Errorf("feature gate %s cannot be set to false: %s", name, always))
		case isRetired:
			notes = append(notes, fmt.Sprintf("feature gate %s is ignored, remove it: %s", name, always))
		case isForeign(name):
			notes = append(notes, fmt.Sprintf("feature gate %s is ignored, remove it: it belongs to the API server", name))
		default:
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		errs = append(errs, fmt.Errorf("unknown feature gate %s: known are %s", strings.Join(unknown, ", "), strings.Join(Known(), ", ")))
	}
	// The notes say all that the library would log; the zero logger discards.
	if err := set.SetFromMapWithLogger(klog.Logger{}, ours); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return Gates{}, notes, err
	}
	return Gates{
		Topology:                       set.Enabled(topology),
		VolumeAttributesClass:          set.Enabled(attributes),
		VolumeAttributesClassSet:       set.ExplicitlySet(attributes),
		CrossNamespaceVolumeDataSource: set.Enabled(crossSource),
		ReleaseLeaderElectionOnExit:    set.Enabled(releaseOnExit),
	}, notes, nil
}

// Known returns the names that have an effect, sorted.
func Known() []string {
	names := []string{"AllAlpha", "AllBeta"}
	for name := range specs {
		names = append(names, string(name))
	}
	slices.Sort(names)
	return names
}

// Help returns one line for each gate that has an effect, sorted.
func Help() []string {
	set := featuregate.NewFeatureGate()
	if err := set.Add(specs); err != nil {
		return nil
	}
	all := set.GetAll()
	var lines []string
	for _, name := range Known() {
		spec := all[featuregate.Feature(name)]
		stage := cmp.Or(string(spec.PreRelease), "GA") // which has no name of its own
		lines = append(lines, fmt.Sprintf("%s=true|false (%s - default=%t)", name, stage, spec.Default))
	}
	return lines
}
