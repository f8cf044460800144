package provision

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// maxMarkerBytes bounds the annotation. A marker that would be longer goes without its segment, which is a hint.
const maxMarkerBytes = 16 << 10

// markerVersion is the format that we write. A later format keeps the meaning of uid and driver.
const markerVersion = 1

// marker is what the annotation on a claim says of a create that may be running. The annotation belongs to
// the tenant's object: only UID and Driver are trusted, and they only say whether it is about this claim and
// this driver. Node and Segment are hints for the topology of the resumed call.
type marker struct {
	Version int               `json:"v"`
	UID     types.UID         `json:"uid"`
	Driver  string            `json:"driver"`
	Class   types.UID         `json:"class,omitempty"`
	Node    string            `json:"node,omitempty"`
	Segment map[string]string `json:"segment,omitempty"`
}

// encode returns the annotation's value, at most maxMarkerBytes long. Map keys come out sorted.
func (m marker) encode() string {
	m.Version = markerVersion
	b, err := json.Marshal(m)
	if err != nil || len(b) > maxMarkerBytes {
		m.Segment = nil
		b, _ = json.Marshal(m) // strings only: cannot fail
	}
	return string(b)
}

// markerState is what a claim says about itself.
type markerState int

const (
	unmarked  markerState = iota // neither finalizer nor annotation
	marked                       // a create of this driver for this claim may be running
	foreign                      // another driver's create may be running
	mismarked                    // finalizer or annotation that do not speak of this claim
)

// readMarker returns what the claim's marker says, and the marker when it is marked or foreign. The error
// says what is wrong when it is mismarked.
func readMarker(claim *corev1.PersistentVolumeClaim, driver string) (markerState, marker, error) {
	value, annotated := claim.Annotations[wellknown.AnnProvisioningInProgress]
	finalizer := hasMarkerFinalizer(claim)
	if !annotated && !finalizer {
		return unmarked, marker{}, nil
	}
	if !annotated {
		return mismarked, marker{}, errors.New("the finalizer is there without the annotation")
	}
	if len(value) > maxMarkerBytes {
		return mismarked, marker{}, fmt.Errorf("the annotation has %d bytes, more than %d", len(value), maxMarkerBytes)
	}
	var m marker
	if err := json.Unmarshal([]byte(value), &m); err != nil {
		return mismarked, marker{}, fmt.Errorf("the annotation is not what we write: %w", err)
	}
	switch {
	case m.UID != claim.UID:
		return mismarked, m, fmt.Errorf("the annotation is about a claim with UID %q", m.UID)
	case m.Driver != driver:
		return foreign, m, nil
	}
	return marked, m, nil
}

func hasMarkerFinalizer(claim *corev1.PersistentVolumeClaim) bool {
	return slices.Contains(claim.Finalizers, wellknown.FinalizerProvisioningInProgress)
}

// otherNode returns the node whose create the claim is marked with, if that is another than node; "" for no such
// marker, and in central mode, which has the creates of all nodes.
func otherNode(claim *corev1.PersistentVolumeClaim, driver, node string) string {
	if node == "" {
		return ""
	}
	if state, m, _ := readMarker(claim, driver); state == marked && m.Node != node {
		return m.Node
	}
	return ""
}

// setMarker puts finalizer and annotation on the claim, and reports whether that changed anything.
func setMarker(claim *corev1.PersistentVolumeClaim, value string) bool {
	changed := false
	if !hasMarkerFinalizer(claim) {
		claim.Finalizers = append(claim.Finalizers, wellknown.FinalizerProvisioningInProgress)
		changed = true
	}
	if claim.Annotations[wellknown.AnnProvisioningInProgress] != value {
		if claim.Annotations == nil {
			claim.Annotations = map[string]string{}
		}
		claim.Annotations[wellknown.AnnProvisioningInProgress] = value
		changed = true
	}
	return changed
}

// clearMarker takes both off the claim, and reports whether that changed anything.
func clearMarker(claim *corev1.PersistentVolumeClaim) bool {
	_, annotated := claim.Annotations[wellknown.AnnProvisioningInProgress]
	if !annotated && !hasMarkerFinalizer(claim) {
		return false
	}
	delete(claim.Annotations, wellknown.AnnProvisioningInProgress)
	claim.Finalizers = slices.DeleteFunc(claim.Finalizers, func(f string) bool { return f == wellknown.FinalizerProvisioningInProgress })
	return true
}
