package memdriver

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protojson"
)

// saved is the store as a file.
type saved struct {
	Made      int
	Volumes   []savedVolume
	Snapshots []SnapshotOf
}

type savedVolume struct {
	Volume
	// Source and Capabilities, in protobuf's JSON form, stand for the fields of Volume.
	Source       json.RawMessage
	Capabilities []json.RawMessage
}

func stateFile(dir string) string { return filepath.Join(dir, "state.json") }

// save writes the store below dir in one step; it does nothing when dir is empty.
func (s *store) save(dir string) error {
	if dir == "" {
		return nil
	}
	state := saved{Made: s.made, Snapshots: s.listSnapshots()}
	for _, volume := range s.listVolumes() {
		entry := savedVolume{Volume: volume}
		var err error
		if volume.Source != nil {
			if entry.Source, err = protojson.Marshal(volume.Source); err != nil {
				return err
			}
		}
		for _, capability := range volume.Capabilities {
			text, err := protojson.Marshal(capability)
			if err != nil {
				return err
			}
			entry.Capabilities = append(entry.Capabilities, text)
		}
		entry.Volume.Source, entry.Volume.Capabilities = nil, nil
		state.Volumes = append(state.Volumes, entry)
	}
	text, err := json.MarshalIndent(state, "", " ")
	if err != nil {
		return err
	}
	partial := stateFile(dir) + ".partial"
	if err := os.WriteFile(partial, text, 0o600); err != nil {
		return err
	}
	return os.Rename(partial, stateFile(dir))
}

// load returns the store that was saved below dir; an empty one when none was, or when dir is empty.
func load(dir string) (store, error) {
	s := newStore(0)
	if dir == "" {
		return s, nil
	}
	text, err := os.ReadFile(stateFile(dir))
	if errors.Is(err, os.ErrNotExist) {
		return s, os.MkdirAll(dir, 0o750)
	}
	if err != nil {
		return s, err
	}
	var state saved
	if err := json.Unmarshal(text, &state); err != nil {
		return s, fmt.Errorf("read %s: %w", stateFile(dir), err)
	}
	s.made = state.Made
	for _, snapshot := range state.Snapshots {
		s.snapshots[snapshot.ID] = &snapshot
	}
	for _, entry := range state.Volumes {
		volume, err := entry.volume()
		if err != nil {
			return s, err
		}
		s.volumes[volume.ID] = volume
	}
	return s, nil
}

// volume returns the volume that was saved.
func (entry savedVolume) volume() (*Volume, error) {
	volume := entry.Volume
	if string(entry.Source) != "null" && len(entry.Source) > 0 {
		volume.Source = &csi.VolumeContentSource{}
		if err := protojson.Unmarshal(entry.Source, volume.Source); err != nil {
			return nil, err
		}
	}
	for _, text := range entry.Capabilities {
		capability := &csi.VolumeCapability{}
		if err := protojson.Unmarshal(text, capability); err != nil {
			return nil, err
		}
		volume.Capabilities = append(volume.Capabilities, capability)
	}
	if volume.Published == nil {
		volume.Published = map[string]bool{}
	}
	return &volume, nil
}
