package capacity

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// VolumeCreated tells that a volume of the class was made: where it is reachable there is less room now. The
// affinity is the one of its PersistentVolume; nil means anywhere. It never blocks and may be called
// concurrently, also before and after Run.
func (c *Controller) VolumeCreated(class string, affinity *corev1.VolumeNodeAffinity) {
	c.change(func(b *book) { b.refreshReachable(class, affinity) })
}

// VolumeDeleted tells that a volume of the class is gone; see VolumeCreated.
func (c *Controller) VolumeDeleted(class string, affinity *corev1.VolumeNodeAffinity) {
	c.change(func(b *book) { b.refreshReachable(class, affinity) })
}

// CreateFailed tells that the driver could not make a volume of the class: what is published for it may be
// wrong. It never blocks and may be called concurrently.
func (c *Controller) CreateFailed(class string) {
	c.change(func(b *book) { b.refreshClass(class) })
}

// refreshReachable gives a turn to the pairs that a volume shares its room with: the segments that its terms
// name, else those that lie within a term, in all classes; and when no term helps, all of its class.
func (b *book) refreshReachable(class string, affinity *corev1.VolumeNodeAffinity) {
	found := false
	if affinity != nil && affinity.Required != nil {
		for _, term := range affinity.Required.NodeSelectorTerms {
			if segment, usable := topology.SegmentOfTerm(term); usable {
				found = b.refreshSegment(segment) || found
			}
		}
	}
	if !found {
		b.refreshClass(class)
	}
}

// refreshSegment reports whether there is such a segment, or one within it.
func (b *book) refreshSegment(segment topology.Segment) bool {
	if _, there := b.segments[segment]; there {
		b.refreshAllOf(segment)
		return true
	}
	// The rarest pair has the fewest candidates.
	var candidates map[topology.Segment]struct{}
	first := true
	for key, value := range segment.All() {
		if with := b.byPair[pair{key, value}]; first || len(with) < len(candidates) {
			candidates, first = with, false
		}
	}
	found := false
	for candidate := range candidates {
		if segment.In(candidate) {
			b.refreshAllOf(candidate)
			found = true
		}
	}
	return found
}

func (b *book) refreshAllOf(segment topology.Segment) {
	for class := range b.classes {
		b.refresh(Key{Class: class, Segment: segment})
	}
}

func (b *book) refreshClass(class string) {
	if _, eligible := b.classes[class]; !eligible {
		return
	}
	for segment := range b.segments {
		b.refresh(Key{Class: class, Segment: segment})
	}
}

func (b *book) refresh(key Key) {
	if it, there := b.items[key]; there && it.desired {
		b.want(it)
	}
}
