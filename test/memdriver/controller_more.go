package memdriver

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func wrap(bytes int64) *wrapperspb.Int64Value { return wrapperspb.Int64(bytes) }

func (s *controller) ValidateVolumeCapabilities(_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	return locked(s.d, CreateDelete, func(_ Config, s *store) (*csi.ValidateVolumeCapabilitiesResponse, error) {
		if r.GetVolumeId() == "" || len(r.GetVolumeCapabilities()) == 0 {
			return nil, status.Error(codes.InvalidArgument, "volume id and capabilities are required")
		}
		if s.volumes[r.GetVolumeId()] == nil {
			return nil, status.Errorf(codes.NotFound, "no volume %q", r.GetVolumeId())
		}
		return &csi.ValidateVolumeCapabilitiesResponse{
			Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: r.GetVolumeCapabilities()},
		}, nil
	})
}

func (s *controller) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	return locked(s.d, Publish, func(cfg Config, s *store) (*csi.ControllerPublishVolumeResponse, error) {
		if r.GetVolumeId() == "" || r.GetNodeId() == "" || r.GetVolumeCapability() == nil {
			return nil, status.Error(codes.InvalidArgument, "volume id, node id and capability are required")
		}
		volume := s.volumes[r.GetVolumeId()]
		if volume == nil {
			return nil, status.Errorf(codes.NotFound, "no volume %q", r.GetVolumeId())
		}
		if r.GetNodeId() != cfg.NodeID {
			return nil, status.Errorf(codes.NotFound, "no node %q", r.GetNodeId())
		}
		if readonly, published := volume.Published[r.GetNodeId()]; published && readonly != r.GetReadonly() {
			return nil, status.Errorf(codes.AlreadyExists, "volume %q is published otherwise", volume.ID)
		}
		volume.Published[r.GetNodeId()] = r.GetReadonly()
		return &csi.ControllerPublishVolumeResponse{}, nil
	})
}

func (s *controller) ControllerUnpublishVolume(_ context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	return locked(s.d, Publish, func(_ Config, s *store) (*csi.ControllerUnpublishVolumeResponse, error) {
		if r.GetVolumeId() == "" {
			return nil, status.Error(codes.InvalidArgument, "volume id is required")
		}
		if volume := s.volumes[r.GetVolumeId()]; volume != nil {
			maps.DeleteFunc(volume.Published, func(node string, _ bool) bool {
				return r.GetNodeId() == "" || node == r.GetNodeId()
			})
		}
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	})
}

func (s *controller) ControllerModifyVolume(_ context.Context, r *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	return locked(s.d, Modify, func(cfg Config, s *store) (*csi.ControllerModifyVolumeResponse, error) {
		if r.GetVolumeId() == "" {
			return nil, status.Error(codes.InvalidArgument, "volume id is required")
		}
		volume := s.volumes[r.GetVolumeId()]
		if volume == nil {
			return nil, status.Errorf(codes.NotFound, "no volume %q", r.GetVolumeId())
		}
		if err := cfg.knowsMutable(r.GetMutableParameters()); err != nil {
			return nil, err
		}
		volume.Mutable = maps.Clone(r.GetMutableParameters())
		return &csi.ControllerModifyVolumeResponse{}, nil
	})
}

func (s *controller) ControllerExpandVolume(_ context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	return locked(s.d, Expand, func(cfg Config, s *store) (*csi.ControllerExpandVolumeResponse, error) {
		if r.GetVolumeId() == "" || r.GetCapacityRange() == nil {
			return nil, status.Error(codes.InvalidArgument, "volume id and capacity range are required")
		}
		volume := s.volumes[r.GetVolumeId()]
		if volume == nil {
			return nil, status.Errorf(codes.NotFound, "no volume %q", r.GetVolumeId())
		}
		bytes, err := cfg.bounded(max(r.GetCapacityRange().GetRequiredBytes(), volume.SizeBytes), r.GetCapacityRange().GetLimitBytes())
		if err != nil {
			return nil, err
		}
		if s.used(volume.Segment)-volume.SizeBytes+bytes > cfg.CapacityBytes {
			return nil, status.Error(codes.OutOfRange, "no room for a larger volume")
		}
		before := volume.SizeBytes
		volume.SizeBytes = bytes
		if err := (content{cfg.Dir}).resize(volume); err != nil {
			volume.SizeBytes = before
			return nil, err
		}
		return &csi.ControllerExpandVolumeResponse{CapacityBytes: bytes, NodeExpansionRequired: cfg.Dir != ""}, nil
	})
}

func (s *controller) CreateSnapshot(_ context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	return locked(s.d, Snapshot, func(cfg Config, s *store) (*csi.CreateSnapshotResponse, error) {
		if r.GetName() == "" || r.GetSourceVolumeId() == "" {
			return nil, status.Error(codes.InvalidArgument, "name and source volume id are required")
		}
		if snapshot := s.snapshotNamed(r.GetName()); snapshot != nil {
			if snapshot.VolumeID != r.GetSourceVolumeId() {
				return nil, status.Errorf(codes.AlreadyExists, "snapshot %q exists of another volume", r.GetName())
			}
			return &csi.CreateSnapshotResponse{Snapshot: snapshot.toCSI()}, nil
		}
		volume := s.volumes[r.GetSourceVolumeId()]
		if volume == nil {
			return nil, status.Errorf(codes.NotFound, "no volume %q", r.GetSourceVolumeId())
		}
		snapshot := &SnapshotOf{
			ID: s.nextID("snap"), Name: r.GetName(), VolumeID: volume.ID,
			SizeBytes: volume.SizeBytes, Created: time.Now(),
		}
		at := content{cfg.Dir}
		if err := at.copy(at.volume(volume.ID), at.snapshot(snapshot.ID)); err != nil {
			return nil, err
		}
		s.snapshots[snapshot.ID] = snapshot
		return &csi.CreateSnapshotResponse{Snapshot: snapshot.toCSI()}, nil
	})
}

func (s *SnapshotOf) toCSI() *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId: s.ID, SourceVolumeId: s.VolumeID, SizeBytes: s.SizeBytes,
		CreationTime: timestamppb.New(s.Created), ReadyToUse: true,
	}
}

func (s *controller) DeleteSnapshot(_ context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	return locked(s.d, Snapshot, func(cfg Config, s *store) (*csi.DeleteSnapshotResponse, error) {
		if r.GetSnapshotId() == "" {
			return nil, status.Error(codes.InvalidArgument, "snapshot id is required")
		}
		if snapshot := s.snapshots[r.GetSnapshotId()]; snapshot != nil {
			if err := (content{cfg.Dir}).remove(content{cfg.Dir}.snapshot(snapshot.ID)); err != nil {
				return nil, err
			}
		}
		delete(s.snapshots, r.GetSnapshotId())
		return &csi.DeleteSnapshotResponse{}, nil
	})
}

func (s *controller) ListSnapshots(_ context.Context, r *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	return locked(s.d, ListSnapshot, func(_ Config, s *store) (*csi.ListSnapshotsResponse, error) {
		wanted := slices.DeleteFunc(s.listSnapshots(), func(snapshot SnapshotOf) bool {
			return (r.GetSnapshotId() != "" && snapshot.ID != r.GetSnapshotId()) ||
				(r.GetSourceVolumeId() != "" && snapshot.VolumeID != r.GetSourceVolumeId())
		})
		snapshots, next, err := page(wanted, r.GetStartingToken(), r.GetMaxEntries(), func(s SnapshotOf) string { return s.ID })
		answer := &csi.ListSnapshotsResponse{NextToken: next}
		for _, snapshot := range snapshots {
			answer.Entries = append(answer.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: snapshot.toCSI()})
		}
		return answer, err
	})
}
