package memdriver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// content is what volumes and snapshots hold: below a folder, each is a folder (file system) or a sparse file (block).
// With an empty folder nothing is kept, and all methods but those that only name a path do nothing.
type content struct{ dir string }

func (c content) volume(id string) string   { return filepath.Join(c.dir, "volumes", id) }
func (c content) snapshot(id string) string { return filepath.Join(c.dir, "snapshots", id) }

// create makes the content of a new volume: empty, or a copy of its source's.
func (c content) create(v *Volume) error {
	if c.dir == "" {
		return nil
	}
	path := c.volume(v.ID)
	source := ""
	switch from := v.Source.GetType().(type) {
	case *csi.VolumeContentSource_Snapshot:
		source = c.snapshot(from.Snapshot.GetSnapshotId())
	case *csi.VolumeContentSource_Volume:
		source = c.volume(from.Volume.GetVolumeId())
	}
	if source == "" {
		return c.empty(path, v)
	}
	info, err := os.Stat(source)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if info.IsDir() == v.block() {
		return status.Error(codes.InvalidArgument, "a volume and its source are both of file systems or both of blocks")
	}
	if err := c.copy(source, path); err != nil {
		return err
	}
	return c.resize(v)
}

func (c content) empty(path string, v *Volume) error {
	// What is there is of a creation that did not end.
	if err := errors.Join(os.RemoveAll(path), os.MkdirAll(filepath.Dir(path), 0o750)); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if v.block() {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		return c.resize(v)
	}
	// Pods of any user write to it, as the mode of the folder says whatever the umask is.
	if err := errors.Join(os.Mkdir(path, 0o750), os.Chmod(path, 0o777)); err != nil { //nolint:gosec // meant for any user
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

// copy copies a volume or snapshot with owners, modes, links and holes. The target appears when it is complete.
func (c content) copy(source, target string) error {
	if c.dir == "" {
		return nil
	}
	partial := target + ".partial"
	err := errors.Join(os.RemoveAll(partial), os.RemoveAll(target), os.MkdirAll(filepath.Dir(target), 0o750))
	if err == nil {
		//nolint:gosec,noctx // paths of our own; a copy goes on when its caller has left
		if out, failed := exec.Command("cp", "--archive", "--sparse=always", "--", source, partial).CombinedOutput(); failed != nil {
			err = fmt.Errorf("copy %s: %w: %s", source, failed, out)
		}
	}
	if err == nil {
		err = os.Rename(partial, target)
	}
	if err != nil {
		return status.Error(codes.Internal, errors.Join(err, os.RemoveAll(partial)).Error())
	}
	return nil
}

// resize gives the file of a block volume, and its loop devices, the size of the volume.
func (c content) resize(v *Volume) error {
	if c.dir == "" || !v.block() {
		return nil
	}
	if err := errors.Join(os.Truncate(c.volume(v.ID), v.SizeBytes), resized(c.volume(v.ID))); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

// remove removes what is at the path, a volume or a snapshot; it is no error when nothing is there.
func (c content) remove(path string) error {
	if c.dir == "" {
		return nil
	}
	if err := errors.Join(detach(path), os.RemoveAll(path)); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}
