package memdriver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/resource"
)

type node struct {
	csi.UnimplementedNodeServer
	d *Driver
}

// onNode runs do under the driver's lock and saves what it has changed; what is no status yet becomes Internal.
func onNode[T any](d *Driver, do func(cfg Config, s *store) error) (*T, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.notify()
	err := do(d.cfg, &d.store)
	if err == nil {
		err = d.store.save(d.cfg.Dir)
	}
	if err == nil {
		return new(T), nil
	}
	if _, ok := status.FromError(err); !ok {
		err = status.Error(codes.Internal, err.Error())
	}
	return nil, err
}

func (s *node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	answer := &csi.NodeGetCapabilitiesResponse{}
	cfg := s.d.config()
	if cfg.Dir == "" {
		return answer, nil
	}
	types := []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	if cfg.can(Expand) {
		types = append(types, csi.NodeServiceCapability_RPC_EXPAND_VOLUME)
	}
	for _, kind := range types {
		answer.Capabilities = append(answer.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: kind}},
		})
	}
	return answer, nil
}

func (s *node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	cfg := s.d.config()
	answer := &csi.NodeGetInfoResponse{NodeId: cfg.NodeID}
	if cfg.Topology != nil {
		answer.AccessibleTopology = &csi.Topology{Segments: cfg.Topology}
	}
	return answer, nil
}

func (s *node) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return onNode[csi.NodeStageVolumeResponse](s.d, func(cfg Config, s *store) error {
		if r.GetVolumeId() == "" || r.GetStagingTargetPath() == "" || r.GetVolumeCapability() == nil {
			return status.Error(codes.InvalidArgument, "volume id, staging path and capability are required")
		}
		volume, err := s.onDisk(cfg, r.GetVolumeId(), r.GetVolumeCapability())
		if err != nil {
			return err
		}
		path := content{cfg.Dir}.volume(volume.ID)
		if volume.block() {
			_, err := attach(path)
			return err
		}
		if err := os.MkdirAll(r.GetStagingTargetPath(), 0o750); err != nil {
			return err
		}
		return bind(path, r.GetStagingTargetPath(), false)
	})
}

// onDisk returns the volume if it exists and has content of the kind that is asked for.
func (s *store) onDisk(cfg Config, id string, capability *csi.VolumeCapability) (*Volume, error) {
	volume := s.volumes[id]
	switch {
	case volume == nil:
		return nil, status.Errorf(codes.NotFound, "no volume %q", id)
	case cfg.Dir == "":
		return nil, status.Error(codes.Unimplemented, "the volumes have no content")
	case volume.block() != (capability.GetBlock() != nil):
		return nil, status.Errorf(codes.InvalidArgument, "volume %q has another volume mode", id)
	}
	return volume, nil
}

func (s *node) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return onNode[csi.NodeUnstageVolumeResponse](s.d, func(cfg Config, s *store) error {
		if r.GetVolumeId() == "" || r.GetStagingTargetPath() == "" {
			return status.Error(codes.InvalidArgument, "volume id and staging path are required")
		}
		if cfg.Dir == "" {
			return nil
		}
		if volume := s.volumes[r.GetVolumeId()]; volume != nil && volume.block() {
			return detach(content{cfg.Dir}.volume(volume.ID))
		}
		return unbind(r.GetStagingTargetPath())
	})
}

// Keys of the volume context that kubelet and the writer of a pod set for ephemeral volumes.
const (
	ephemeralKey = "csi.storage.k8s.io/ephemeral"
	sizeKey      = "size"
)

func (s *node) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return onNode[csi.NodePublishVolumeResponse](s.d, func(cfg Config, s *store) error {
		if r.GetVolumeId() == "" || r.GetTargetPath() == "" || r.GetVolumeCapability() == nil {
			return status.Error(codes.InvalidArgument, "volume id, target path and capability are required")
		}
		if cfg.Dir == "" {
			return os.MkdirAll(r.GetTargetPath(), 0o750)
		}
		if r.GetVolumeContext()[ephemeralKey] == "true" {
			if err := s.createEphemeral(cfg, r); err != nil {
				return err
			}
		}
		volume, err := s.onDisk(cfg, r.GetVolumeId(), r.GetVolumeCapability())
		if err != nil {
			return err
		}
		return volume.publish(content{cfg.Dir}, r)
	})
}

// createEphemeral makes the volume of a pod's inline volume, unless an earlier call has. It takes room as any other.
func (s *store) createEphemeral(cfg Config, r *csi.NodePublishVolumeRequest) error {
	if s.volumes[r.GetVolumeId()] != nil {
		return nil
	}
	bytes := resource.MustParse("1Mi")
	if text, ok := r.GetVolumeContext()[sizeKey]; ok {
		var err error
		if bytes, err = resource.ParseQuantity(text); err != nil || bytes.Sign() <= 0 {
			return status.Errorf(codes.InvalidArgument, "%s %q is not a positive quantity", sizeKey, text)
		}
	}
	if s.used(cfg.Topology)+bytes.Value() > cfg.CapacityBytes {
		return status.Error(codes.ResourceExhausted, "no room for an ephemeral volume")
	}
	volume := &Volume{
		ID: r.GetVolumeId(), Name: "ephemeral/" + r.GetVolumeId(), SizeBytes: bytes.Value(), Segment: cfg.Topology, Ephemeral: true,
		Capabilities: []*csi.VolumeCapability{r.GetVolumeCapability()}, Published: map[string]bool{},
	}
	if filepath.Base(volume.ID) != volume.ID {
		return status.Errorf(codes.InvalidArgument, "volume id %q is no name of a file", volume.ID)
	}
	if err := (content{cfg.Dir}).create(volume); err != nil {
		return err
	}
	s.volumes[volume.ID] = volume
	return nil
}

// publish shows the volume at the target, within what its access mode allows.
func (v *Volume) publish(c content, r *csi.NodePublishVolumeRequest) error {
	target, mode := r.GetTargetPath(), r.GetVolumeCapability().GetAccessMode().GetMode()
	if mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER &&
		slices.ContainsFunc(v.Targets, func(other string) bool { return other != target }) {
		return status.Errorf(codes.FailedPrecondition, "volume %q is published at another path, and may be at one only", v.ID)
	}
	source := r.GetStagingTargetPath()
	switch {
	case v.Ephemeral:
		source = c.volume(v.ID)
	case v.block():
		devices, err := loopsOf(c.volume(v.ID))
		if err != nil {
			return err
		}
		if len(devices) == 0 {
			return status.Errorf(codes.FailedPrecondition, "volume %q is not staged", v.ID)
		}
		source = devices[0]
	default:
		if staged, err := mounted(source); err != nil {
			return err
		} else if !staged {
			return status.Errorf(codes.FailedPrecondition, "volume %q is not staged at %q", v.ID, source)
		}
	}
	if err := makeTarget(target, v.block()); err != nil {
		return err
	}
	readonly := r.GetReadonly() || mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY ||
		mode == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	if err := bind(source, target, readonly); err != nil {
		return err
	}
	if !slices.Contains(v.Targets, target) {
		v.Targets = append(v.Targets, target)
	}
	return nil
}

// makeTarget makes what a mount needs to cover: a file for a device, a folder for a file system.
func makeTarget(path string, block bool) error {
	if !block {
		return os.MkdirAll(path, 0o750)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return file.Close()
}

func (s *node) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return onNode[csi.NodeUnpublishVolumeResponse](s.d, func(cfg Config, s *store) error {
		if r.GetVolumeId() == "" || r.GetTargetPath() == "" {
			return status.Error(codes.InvalidArgument, "volume id and target path are required")
		}
		if err := cfg.removeTarget(r.GetTargetPath()); err != nil {
			return err
		}
		volume := s.volumes[r.GetVolumeId()]
		if volume == nil {
			return nil
		}
		volume.Targets = slices.DeleteFunc(volume.Targets, func(target string) bool { return target == r.GetTargetPath() })
		if volume.Ephemeral && len(volume.Targets) == 0 {
			return s.removeEphemeral(cfg, volume)
		}
		return nil
	})
}

// removeTarget unmounts and removes the target of a pod; it is no error when that is gone.
func (c Config) removeTarget(path string) error {
	if c.Dir != "" {
		if err := unbind(path); err != nil {
			return err
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// removeEphemeral removes a volume that lived as long as its pod.
func (s *store) removeEphemeral(cfg Config, volume *Volume) error {
	if err := (content{cfg.Dir}).remove(content{cfg.Dir}.volume(volume.ID)); err != nil {
		return err
	}
	delete(s.volumes, volume.ID)
	return nil
}

func (s *node) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	return onNode[csi.NodeExpandVolumeResponse](s.d, func(cfg Config, s *store) error {
		if r.GetVolumeId() == "" || r.GetVolumePath() == "" {
			return status.Error(codes.InvalidArgument, "volume id and volume path are required")
		}
		volume := s.volumes[r.GetVolumeId()]
		if volume == nil {
			return status.Errorf(codes.NotFound, "no volume %q", r.GetVolumeId())
		}
		return content{cfg.Dir}.resize(volume)
	})
}
