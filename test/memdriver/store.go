package memdriver

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
)

// Volume is a volume that exists. Its maps and messages are read-only.
type Volume struct {
	ID, Name  string
	SizeBytes int64
	// Segment is where it lives; nil without topology.
	Segment map[string]string
	// Source is nil for an empty volume.
	Source *csi.VolumeContentSource
	// Parameters and Mutable are what it was made with; Mutable follows ControllerModifyVolume.
	Parameters, Mutable map[string]string
	Capabilities        []*csi.VolumeCapability
	// Ephemeral is one that lives and ends with a pod.
	Ephemeral bool
	// Targets are the paths where NodePublishVolume shows it; none without Config.Dir.
	Targets []string
	// Published is node id → read-only.
	Published map[string]bool
}

// block tells whether the volume is a raw device.
func (v *Volume) block() bool {
	return len(v.Capabilities) > 0 && v.Capabilities[0].GetBlock() != nil
}

// SnapshotOf is a snapshot that exists.
type SnapshotOf struct {
	ID, Name, VolumeID string
	SizeBytes          int64
	Created            time.Time
}

// store is the backend. It has no lock of its own: the Driver's guards it.
type store struct {
	volumes   map[string]*Volume     // id → volume
	snapshots map[string]*SnapshotOf // id → snapshot
	made      int                    // how many ids were given out, also over a reset
}

func newStore(made int) store {
	return store{volumes: map[string]*Volume{}, snapshots: map[string]*SnapshotOf{}, made: made}
}

func (s *store) nextID(kind string) string {
	s.made++
	return fmt.Sprintf("%s-%04d", kind, s.made)
}

// workName is the name that a request works on: one name for the creation and the deletion of a volume.
// Empty for requests that change nothing and for unknown volumes.
func (s *store) workName(request any) string {
	switch r := request.(type) {
	case *csi.CreateVolumeRequest:
		return "volume " + r.GetName()
	case *csi.DeleteVolumeRequest:
		return s.volumeName(r.GetVolumeId())
	case *csi.ControllerExpandVolumeRequest:
		return s.volumeName(r.GetVolumeId())
	case *csi.ControllerModifyVolumeRequest:
		return s.volumeName(r.GetVolumeId())
	case *csi.CreateSnapshotRequest:
		return "snapshot " + r.GetName()
	case *csi.DeleteSnapshotRequest:
		if snapshot := s.snapshots[r.GetSnapshotId()]; snapshot != nil {
			return "snapshot " + snapshot.Name
		}
	}
	return ""
}

func (s *store) volumeName(id string) string {
	if volume := s.volumes[id]; volume != nil {
		return "volume " + volume.Name
	}
	return ""
}

func (s *store) volumeNamed(name string) *Volume {
	for _, volume := range s.volumes {
		if volume.Name == name {
			return volume
		}
	}
	return nil
}

func (s *store) snapshotNamed(name string) *SnapshotOf {
	for _, snapshot := range s.snapshots {
		if snapshot.Name == name {
			return snapshot
		}
	}
	return nil
}

// listVolumes returns copies, sorted by id.
func (s *store) listVolumes() []Volume {
	list := make([]Volume, 0, len(s.volumes))
	for _, id := range slices.Sorted(maps.Keys(s.volumes)) {
		volume := *s.volumes[id]
		volume.Mutable = maps.Clone(volume.Mutable)
		volume.Published = maps.Clone(volume.Published)
		volume.Targets = slices.Clone(volume.Targets)
		list = append(list, volume)
	}
	return list
}

func (s *store) listSnapshots() []SnapshotOf {
	list := make([]SnapshotOf, 0, len(s.snapshots))
	for _, id := range slices.Sorted(maps.Keys(s.snapshots)) {
		list = append(list, *s.snapshots[id])
	}
	return list
}

// used is the sum of the volumes in a segment; nil means all.
func (s *store) used(segment map[string]string) int64 {
	var sum int64
	for _, volume := range s.volumes {
		if segment == nil || maps.Equal(volume.Segment, segment) {
			sum += volume.SizeBytes
		}
	}
	return sum
}

// contradicts says in one word what of the request an existing volume contradicts; empty when it can be its answer.
func (v *Volume) contradicts(request *csi.CreateVolumeRequest) string {
	limit := request.GetCapacityRange().GetLimitBytes()
	switch {
	case v.SizeBytes < request.GetCapacityRange().GetRequiredBytes(), limit > 0 && v.SizeBytes > limit:
		return "size"
	case !maps.Equal(v.Parameters, request.GetParameters()):
		return "parameters"
	case !proto.Equal(v.Source, request.GetVolumeContentSource()):
		return "content source"
	case !slices.EqualFunc(v.Capabilities, request.GetVolumeCapabilities(), func(a, b *csi.VolumeCapability) bool {
		return proto.Equal(a, b)
	}):
		return "capabilities"
	}
	requisite := request.GetAccessibilityRequirements().GetRequisite()
	if v.Segment != nil && len(requisite) > 0 && !slices.ContainsFunc(requisite, func(t *csi.Topology) bool {
		return agree(v.Segment, t.GetSegments())
	}) {
		return "topology"
	}
	return ""
}

// agree says that two segments share a key and differ in none.
func agree(a, b map[string]string) bool {
	shared := false
	for key, value := range a {
		if other, ok := b[key]; ok {
			if other != value {
				return false
			}
			shared = true
		}
	}
	return shared
}

// segmentKey is a segment as sorted text.
func segmentKey(segment map[string]string) string {
	words := make([]string, 0, len(segment))
	for _, key := range slices.Sorted(maps.Keys(segment)) {
		words = append(words, key+"="+segment[key])
	}
	return strings.Join(words, ",")
}
