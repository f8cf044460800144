package main

import (
	"errors"
	"fmt"

	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

// keyFlag is a flag whose value is patterns for keys of labels or annotations.
type keyFlag struct {
	flag     string
	patterns []string
	// never reports whether nothing that the pattern matches is passed on.
	never func(pattern string) bool
}

func (o *Options) keyFlags() []keyFlag {
	return []keyFlag{
		{"create-metadata-annotations", o.createAnnotations, volume.KeptFromDriver},
		{"create-metadata-labels", o.createLabels, volume.KeptFromDriver},
		{"pv-copy-annotations", o.copyAnnotations, volume.KeptFromPV},
		{"pv-copy-labels", o.copyLabels, volume.KeptFromPV},
	}
}

// claimKeys returns what the driver is told of a claim, and what its PersistentVolume takes over.
func (o *Options) claimKeys() (toDriver, toPV volume.ClaimKeys, err error) {
	keys := make([]volume.Keys, 0, 4)
	var errs []error
	for _, f := range o.keyFlags() {
		parsed, err := volume.ParseKeys(f.patterns)
		keys, errs = append(keys, parsed), append(errs, err)
	}
	return volume.ClaimKeys{Annotations: keys[0], Labels: keys[1]}, volume.ClaimKeys{Annotations: keys[2], Labels: keys[3]}, errors.Join(errs...)
}

// keyWarnings names the patterns that match nothing that is passed on.
func (o *Options) keyWarnings() []string {
	var all []string
	for _, f := range o.keyFlags() {
		for _, pattern := range f.patterns {
			if f.never(pattern) {
				all = append(all, fmt.Sprintf("--%s: %q matches nothing that is passed on: it is Kubernetes' own or ours", f.flag, pattern))
			}
		}
	}
	return all
}
