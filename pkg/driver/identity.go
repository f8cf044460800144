package driver

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
)

// PluginSet is a set of plugin capabilities. Nil is the empty set.
type PluginSet map[csi.PluginCapability_Service_Type]struct{}

// Has reports whether c is in the set.
func (s PluginSet) Has(c csi.PluginCapability_Service_Type) bool {
	_, ok := s[c]
	return ok
}

// ControllerSet is a set of controller capabilities. Nil is the empty set.
type ControllerSet map[csi.ControllerServiceCapability_RPC_Type]struct{}

// Has reports whether c is in the set.
func (s ControllerSet) Has(c csi.ControllerServiceCapability_RPC_Type) bool {
	_, ok := s[c]
	return ok
}

// Identity is who the driver is and what it can do. It is read-only.
type Identity struct {
	// Name is the driver's name, never empty.
	Name string
	// Plugin holds its plugin capabilities.
	Plugin PluginSet
	// Controller holds its controller capabilities.
	Controller ControllerSet
	// Node is the answer of NodeGetInfo; nil unless Config.Node.
	Node *csi.NodeGetInfoResponse
}

// difference returns nil when now is the same driver as before, otherwise an error that names both.
func difference(before, now Identity) error {
	var changes []string
	if before.Name != now.Name {
		changes = append(changes, fmt.Sprintf("its name was %q and is %q", before.Name, now.Name))
	}
	if !maps.Equal(before.Plugin, now.Plugin) {
		changes = append(changes, fmt.Sprintf("its plugin capabilities were %v and are %v", names(before.Plugin), names(now.Plugin)))
	}
	if !maps.Equal(before.Controller, now.Controller) {
		changes = append(changes, fmt.Sprintf("its controller capabilities were %v and are %v", names(before.Controller), names(now.Controller)))
	}
	// Nothing depends on the node's id, and some drivers make a new one at each start.
	if was, is := before.Node.GetAccessibleTopology(), now.Node.GetAccessibleTopology(); !proto.Equal(was, is) {
		changes = append(changes, fmt.Sprintf("the topology of its node was %s and is %s", segmentsOf(was), segmentsOf(is)))
	}
	if len(changes) == 0 {
		return nil
	}
	return errors.New(strings.Join(changes, "; "))
}

// segmentsOf writes a topology down, its keys sorted.
func segmentsOf(t *csi.Topology) string {
	if t == nil {
		return "none"
	}
	return fmt.Sprint(t.GetSegments())
}

// names lists a capability set in the order of the CSI specification.
func names[C interface {
	~int32
	fmt.Stringer
}](set map[C]struct{}) []string {
	list := []string{}
	for _, c := range slices.Sorted(maps.Keys(set)) {
		list = append(list, c.String())
	}
	return list
}

func pluginSet(resp *csi.GetPluginCapabilitiesResponse) PluginSet {
	set := PluginSet{}
	for _, c := range resp.GetCapabilities() {
		if t := c.GetService().GetType(); t != csi.PluginCapability_Service_UNKNOWN {
			set[t] = struct{}{}
		}
	}
	return set
}

func controllerSet(resp *csi.ControllerGetCapabilitiesResponse) ControllerSet {
	set := ControllerSet{}
	for _, c := range resp.GetCapabilities() {
		if t := c.GetRpc().GetType(); t != csi.ControllerServiceCapability_RPC_UNKNOWN {
			set[t] = struct{}{}
		}
	}
	return set
}
