package memdriver

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type controller struct {
	csi.UnimplementedControllerServer
	d *Driver
}

// locked runs do with the store under the driver's lock and saves what it has changed, if the driver has the capability.
func locked[T any](d *Driver, need Capability, do func(cfg Config, s *store) (*T, error)) (*T, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.cfg.can(need) {
		return nil, status.Errorf(codes.Unimplemented, "no capability %s", need)
	}
	defer d.notify()
	answer, err := do(d.cfg, &d.store)
	if err != nil {
		return nil, err
	}
	if err := d.store.save(d.cfg.Dir); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return answer, nil
}

func (s *controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	cfg := s.d.config()
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, capability := range cfg.Capabilities {
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: capability}},
		})
	}
	return answer, nil
}

func (s *controller) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	return locked(s.d, CreateDelete, func(cfg Config, s *store) (*csi.CreateVolumeResponse, error) {
		if r.GetName() == "" || len(r.GetVolumeCapabilities()) == 0 {
			return nil, status.Error(codes.InvalidArgument, "name and capabilities are required")
		}
		if err := cfg.knowsMutable(r.GetMutableParameters()); err != nil {
			return nil, err
		}
		if volume := s.volumeNamed(r.GetName()); volume != nil {
			if what := volume.contradicts(r); what != "" {
				return nil, status.Errorf(codes.AlreadyExists, "volume %q exists with another %s", r.GetName(), what)
			}
			return &csi.CreateVolumeResponse{Volume: volume.toCSI()}, nil
		}
		volume, err := s.create(cfg, r)
		if err != nil {
			return nil, err
		}
		return &csi.CreateVolumeResponse{Volume: volume.toCSI()}, nil
	})
}

// create makes a new volume for the request.
func (s *store) create(cfg Config, r *csi.CreateVolumeRequest) (*Volume, error) {
	bytes, err := s.sizeFor(cfg, r)
	if err != nil {
		return nil, err
	}
	segment, err := s.place(cfg, r.GetAccessibilityRequirements(), bytes)
	if err != nil {
		return nil, err
	}
	volume := &Volume{
		ID: s.nextID("vol"), Name: r.GetName(), SizeBytes: bytes, Segment: segment,
		Source: r.GetVolumeContentSource(), Capabilities: r.GetVolumeCapabilities(),
		Parameters: r.GetParameters(), Mutable: maps.Clone(r.GetMutableParameters()),
		Published: map[string]bool{},
	}
	if err := (content{cfg.Dir}).create(volume); err != nil {
		return nil, err
	}
	s.volumes[volume.ID] = volume
	return volume, nil
}

func (v *Volume) toCSI() *csi.Volume {
	answer := &csi.Volume{
		VolumeId: v.ID, CapacityBytes: v.SizeBytes, ContentSource: v.Source,
		VolumeContext: map[string]string{"name": v.Name},
	}
	if v.Segment != nil {
		answer.AccessibleTopology = []*csi.Topology{{Segments: v.Segment}}
	}
	return answer
}

func (c Config) knowsMutable(parameters map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if c.MutableKeys != nil && !slices.Contains(c.MutableKeys, key) {
			return status.Errorf(codes.InvalidArgument, "unknown mutable parameter %q", key)
		}
	}
	return nil
}

// sizeFor is the size of a new volume: as asked, at least that of its source, rounded up.
func (s *store) sizeFor(cfg Config, r *csi.CreateVolumeRequest) (int64, error) {
	bytes := max(r.GetCapacityRange().GetRequiredBytes(), 1)
	switch source := r.GetVolumeContentSource().GetType().(type) {
	case *csi.VolumeContentSource_Snapshot:
		snapshot := s.snapshots[source.Snapshot.GetSnapshotId()]
		if snapshot == nil {
			return 0, status.Errorf(codes.NotFound, "no snapshot %q", source.Snapshot.GetSnapshotId())
		}
		bytes = max(bytes, snapshot.SizeBytes)
	case *csi.VolumeContentSource_Volume:
		volume := s.volumes[source.Volume.GetVolumeId()]
		if volume == nil {
			return 0, status.Errorf(codes.NotFound, "no volume %q", source.Volume.GetVolumeId())
		}
		bytes = max(bytes, volume.SizeBytes)
	}
	return cfg.bounded(bytes, r.GetCapacityRange().GetLimitBytes())
}

// bounded rounds a size up and refuses one that is too large; zero limit: none but the driver's own.
func (c Config) bounded(bytes, limit int64) (int64, error) {
	if c.RoundTo > 0 {
		bytes = (bytes + c.RoundTo - 1) / c.RoundTo * c.RoundTo
	}
	if (limit > 0 && bytes > limit) || (c.MaxVolumeBytes > 0 && bytes > c.MaxVolumeBytes) {
		return 0, status.Errorf(codes.OutOfRange, "a volume of %s is out of range", size(bytes))
	}
	return bytes, nil
}

// place chooses the segment of a new volume: the first with room, preferred ones first.
func (s *store) place(cfg Config, asked *csi.TopologyRequirement, bytes int64) (map[string]string, error) {
	if cfg.Topology == nil {
		if s.used(nil)+bytes > cfg.CapacityBytes {
			return nil, status.Error(codes.ResourceExhausted, "no room")
		}
		return nil, nil //nolint:nilnil // no topology, no segment
	}
	wanted := slices.Concat(asked.GetPreferred(), asked.GetRequisite())
	if len(wanted) == 0 {
		wanted = []*csi.Topology{{Segments: cfg.Topology}}
	}
	served := false
	for _, topology := range wanted {
		for _, segment := range cfg.serving(topology.GetSegments()) {
			served = true
			if s.used(segment)+bytes <= cfg.CapacityBytes {
				return segment, nil
			}
		}
	}
	if !served {
		return nil, status.Error(codes.ResourceExhausted, "none of the requested segments is served")
	}
	return nil, status.Error(codes.ResourceExhausted, "no room in the requested segments")
}

// serving lists the driver's segments that agree with one that is asked for.
func (c Config) serving(asked map[string]string) []map[string]string {
	if c.Segments == nil {
		return []map[string]string{asked}
	}
	var list []map[string]string
	for _, segment := range c.Segments {
		if agree(segment, asked) {
			list = append(list, segment)
		}
	}
	return list
}

func (s *controller) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	return locked(s.d, CreateDelete, func(cfg Config, s *store) (*csi.DeleteVolumeResponse, error) {
		if r.GetVolumeId() == "" {
			return nil, status.Error(codes.InvalidArgument, "volume id is required")
		}
		volume := s.volumes[r.GetVolumeId()]
		if volume == nil {
			return &csi.DeleteVolumeResponse{}, nil
		}
		if len(volume.Published)+len(volume.Targets) > 0 {
			return nil, status.Errorf(codes.FailedPrecondition, "volume %q is published", r.GetVolumeId())
		}
		if err := (content{cfg.Dir}).remove(content{cfg.Dir}.volume(volume.ID)); err != nil {
			return nil, err
		}
		delete(s.volumes, r.GetVolumeId())
		return &csi.DeleteVolumeResponse{}, nil
	})
}

func (s *controller) ListVolumes(_ context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	return locked(s.d, List, func(_ Config, s *store) (*csi.ListVolumesResponse, error) {
		volumes, next, err := page(s.listVolumes(), r.GetStartingToken(), r.GetMaxEntries(), func(v Volume) string { return v.ID })
		answer := &csi.ListVolumesResponse{NextToken: next}
		for _, volume := range volumes {
			answer.Entries = append(answer.Entries, &csi.ListVolumesResponse_Entry{Volume: volume.toCSI()})
		}
		return answer, err
	})
}

// page cuts a list that is sorted by id. The token is the id after which the page begins, marked, so that
// it stays good when that entry is deleted.
func page[T any](all []T, token string, most int32, id func(T) string) ([]T, string, error) {
	const mark = "after/"
	if token != "" {
		after, ok := strings.CutPrefix(token, mark)
		if !ok {
			return nil, "", status.Errorf(codes.Aborted, "unknown starting token %q", token)
		}
		all = slices.DeleteFunc(all, func(entry T) bool { return id(entry) <= after })
	}
	if most > 0 && len(all) > int(most) {
		return all[:most], mark + id(all[most-1]), nil
	}
	return all, "", nil
}

func (s *controller) GetCapacity(_ context.Context, r *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	return locked(s.d, Capacity, func(cfg Config, s *store) (*csi.GetCapacityResponse, error) {
		answer := &csi.GetCapacityResponse{}
		segment := r.GetAccessibleTopology().GetSegments()
		switch {
		case cfg.Topology == nil || segment == nil:
			answer.AvailableCapacity = max(cfg.CapacityBytes-s.used(nil), 0)
		default:
			for _, own := range cfg.serving(segment) {
				answer.AvailableCapacity += max(cfg.CapacityBytes-s.used(own), 0)
			}
		}
		if cfg.MaxVolumeBytes > 0 {
			answer.MaximumVolumeSize = wrap(cfg.MaxVolumeBytes)
		}
		return answer, nil
	})
}
