package memdriver

import (
	"errors"
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// Capability is short for the type of a controller capability.
type Capability = csi.ControllerServiceCapability_RPC_Type

// Controller capabilities under short names.
const (
	CreateDelete = csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME
	Publish      = csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME
	List         = csi.ControllerServiceCapability_RPC_LIST_VOLUMES
	Capacity     = csi.ControllerServiceCapability_RPC_GET_CAPACITY
	Snapshot     = csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT
	ListSnapshot = csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS
	Clone        = csi.ControllerServiceCapability_RPC_CLONE_VOLUME
	Modify       = csi.ControllerServiceCapability_RPC_MODIFY_VOLUME
	Expand       = csi.ControllerServiceCapability_RPC_EXPAND_VOLUME
	MultiWriter  = csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER
)

// DefaultName is the driver's name when Config gives none.
const DefaultName = "mem.csi.example.com"

// AllCapabilities returns everything the driver can do.
func AllCapabilities() []Capability {
	return []Capability{CreateDelete, Publish, List, Capacity, Snapshot, ListSnapshot, Clone, Modify, Expand, MultiWriter}
}

// Config says what the driver claims to be. The zero value is a usable driver without topology and without attach.
type Config struct {
	// Name is the plugin name. Default: DefaultName. Empty answers come from a Rule, not from here.
	Name string
	// Socket is the path of the unix socket. Required by New.
	Socket string
	// Dir is the folder of what the volumes hold: folders and, for block volumes, sparse files behind loop devices. The
	// driver then stages, publishes and expands them, copies snapshots and clones, and a new Driver with the same
	// folder knows the volumes of the one before. It needs Linux and root. Empty: volumes hold nothing.
	Dir string
	// Registration is the folder where kubelet looks for plugins, its plugins_registry. Empty: no kubelet is told.
	Registration string
	// NodeID is what NodeGetInfo answers. Default: "node-1".
	NodeID string
	// Capabilities of the controller. Nil: all but Publish, because attaching needs an attacher.
	// An empty slice that is not nil: none.
	Capabilities []Capability
	// NoController leaves CONTROLLER_SERVICE out of the plugin's capabilities.
	NoController bool
	// Topology is the segment of this node, the answer of NodeGetInfo. Not nil: the plugin has
	// VOLUME_ACCESSIBILITY_CONSTRAINTS and volumes get an accessible topology.
	Topology map[string]string
	// Segments are the places where volumes may live. Nil: wherever a request asks for.
	Segments []map[string]string
	// CapacityBytes is the room in each segment. Zero: a pebibyte.
	CapacityBytes int64
	// MaxVolumeBytes bounds one volume and is told by GetCapacity. Zero: not told, no bound.
	MaxVolumeBytes int64
	// RoundTo rounds sizes up to a multiple. Zero: sizes stay as asked.
	RoundTo int64
	// MutableKeys are the mutable parameters that the driver knows. Nil: any.
	MutableKeys []string
	// NotReady makes Probe answer ready=false.
	NotReady bool
	// Observe, if not nil, gets each call when it has ended, one at a time, in the order they end.
	// It must not call methods of the Driver.
	Observe func(Call)
}

const pebibyte = 1 << 50

func (c Config) complete() (Config, error) {
	if c.Socket == "" {
		return c, errors.New("memdriver: no socket path")
	}
	if c.Name == "" {
		c.Name = DefaultName
	}
	if c.NodeID == "" {
		c.NodeID = "node-1"
	}
	if c.Capabilities == nil {
		c.Capabilities = slices.DeleteFunc(AllCapabilities(), func(have Capability) bool { return have == Publish })
	}
	if c.CapacityBytes == 0 {
		c.CapacityBytes = pebibyte
	}
	c.Topology = maps.Clone(c.Topology)
	return c, nil
}

func (c Config) can(capability Capability) bool { return slices.Contains(c.Capabilities, capability) }
