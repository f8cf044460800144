package operations

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// A CreateVolumeRequest as JSON, in the form that Protocol Buffers define for JSON. protojson does the same; to read with it
// takes 0.2 MB of the program. Secrets are left out.

type requestJSON struct {
	Name                      string             `json:"name,omitempty"`
	CapacityRange             *rangeJSON         `json:"capacityRange,omitempty"`
	VolumeCapabilities        []capabilityJSON   `json:"volumeCapabilities,omitempty"`
	Parameters                map[string]string  `json:"parameters,omitempty"`
	VolumeContentSource       *contentSourceJSON `json:"volumeContentSource,omitempty"`
	AccessibilityRequirements *requirementsJSON  `json:"accessibilityRequirements,omitempty"`
	MutableParameters         map[string]string  `json:"mutableParameters,omitempty"`
}

type rangeJSON struct {
	RequiredBytes int64 `json:"requiredBytes,string,omitempty"`
	LimitBytes    int64 `json:"limitBytes,string,omitempty"`
}

type capabilityJSON struct {
	Block      *struct{}       `json:"block,omitempty"`
	Mount      *mountJSON      `json:"mount,omitempty"`
	AccessMode *accessModeJSON `json:"accessMode,omitempty"`
}

type mountJSON struct {
	FsType           string   `json:"fsType,omitempty"`
	MountFlags       []string `json:"mountFlags,omitempty"`
	VolumeMountGroup string   `json:"volumeMountGroup,omitempty"`
}

type accessModeJSON struct {
	Mode string `json:"mode,omitempty"`
}

type contentSourceJSON struct {
	Snapshot *snapshotJSON `json:"snapshot,omitempty"`
	Volume   *volumeJSON   `json:"volume,omitempty"`
}

type snapshotJSON struct {
	SnapshotID string `json:"snapshotId,omitempty"`
}

type volumeJSON struct {
	VolumeID string `json:"volumeId,omitempty"`
}

type requirementsJSON struct {
	Requisite []topologyJSON `json:"requisite,omitempty"`
	Preferred []topologyJSON `json:"preferred,omitempty"`
}

type topologyJSON struct {
	Segments map[string]string `json:"segments,omitempty"`
}

// MarshalRequest returns the request as JSON without its secrets: the same text for the same request. The error says that it
// is no valid UTF-8, or has a field that the JSON has no place for.
func MarshalRequest(req *csi.CreateVolumeRequest) ([]byte, error) {
	r := requestJSON{
		Name: req.GetName(), Parameters: req.GetParameters(), MutableParameters: req.GetMutableParameters(),
		AccessibilityRequirements: requirementsToJSON(req.GetAccessibilityRequirements()),
	}
	if capacity := req.GetCapacityRange(); capacity != nil {
		r.CapacityRange = &rangeJSON{RequiredBytes: capacity.GetRequiredBytes(), LimitBytes: capacity.GetLimitBytes()}
	}
	for _, capability := range req.GetVolumeCapabilities() {
		r.VolumeCapabilities = append(r.VolumeCapabilities, capabilityToJSON(capability))
	}
	if source := req.GetVolumeContentSource(); source != nil {
		r.VolumeContentSource = &contentSourceJSON{}
		switch {
		case source.GetSnapshot() != nil:
			r.VolumeContentSource.Snapshot = &snapshotJSON{SnapshotID: source.GetSnapshot().GetSnapshotId()}
		case source.GetVolume() != nil:
			r.VolumeContentSource.Volume = &volumeJSON{VolumeID: source.GetVolume().GetVolumeId()}
		}
	}
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return text, r.checkUTF8()
}

func requirementsToJSON(r *csi.TopologyRequirement) *requirementsJSON {
	if r == nil {
		return nil
	}
	terms := func(all []*csi.Topology) (list []topologyJSON) {
		for _, term := range all {
			list = append(list, topologyJSON{Segments: term.GetSegments()})
		}
		return list
	}
	return &requirementsJSON{Requisite: terms(r.GetRequisite()), Preferred: terms(r.GetPreferred())}
}

func capabilityToJSON(c *csi.VolumeCapability) capabilityJSON {
	var j capabilityJSON
	switch {
	case c.GetMount() != nil:
		m := c.GetMount()
		j.Mount = &mountJSON{FsType: m.GetFsType(), MountFlags: m.GetMountFlags(), VolumeMountGroup: m.GetVolumeMountGroup()}
	case c.GetBlock() != nil:
		j.Block = &struct{}{}
	}
	if mode := c.GetAccessMode(); mode != nil {
		j.AccessMode = &accessModeJSON{}
		if mode.GetMode() != csi.VolumeCapability_AccessMode_UNKNOWN {
			j.AccessMode.Mode = mode.GetMode().String() // its number, if it has no name
		}
	}
	return j
}

// UnmarshalRequest is the reverse of MarshalRequest. Fields that it does not know are an error: the request would be another
// one without them.
func UnmarshalRequest(text []byte) (*csi.CreateVolumeRequest, error) {
	var r requestJSON
	if err := unmarshalStrict(text, &r); err != nil {
		return nil, err
	}
	if err := r.checkUTF8(); err != nil {
		return nil, err
	}
	req := &csi.CreateVolumeRequest{Name: r.Name, Parameters: r.Parameters, MutableParameters: r.MutableParameters}
	if r.CapacityRange != nil {
		req.CapacityRange = &csi.CapacityRange{RequiredBytes: r.CapacityRange.RequiredBytes, LimitBytes: r.CapacityRange.LimitBytes}
	}
	for _, j := range r.VolumeCapabilities {
		capability, err := j.capability()
		if err != nil {
			return nil, err
		}
		req.VolumeCapabilities = append(req.VolumeCapabilities, capability)
	}
	if s := r.VolumeContentSource; s != nil {
		req.VolumeContentSource = &csi.VolumeContentSource{}
		switch {
		case s.Snapshot != nil && s.Volume != nil:
			return nil, fmt.Errorf("volumeContentSource has two sources")
		case s.Snapshot != nil:
			req.VolumeContentSource.Type = &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: s.Snapshot.SnapshotID}}
		case s.Volume != nil:
			req.VolumeContentSource.Type = &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: s.Volume.VolumeID}}
		}
	}
	if r.AccessibilityRequirements != nil {
		req.AccessibilityRequirements = &csi.TopologyRequirement{
			Requisite: topologies(r.AccessibilityRequirements.Requisite), Preferred: topologies(r.AccessibilityRequirements.Preferred),
		}
	}
	return req, nil
}

func topologies(all []topologyJSON) (terms []*csi.Topology) {
	for _, term := range all {
		terms = append(terms, &csi.Topology{Segments: term.Segments})
	}
	return terms
}

func (j capabilityJSON) capability() (*csi.VolumeCapability, error) {
	c := &csi.VolumeCapability{}
	switch {
	case j.Mount != nil && j.Block != nil:
		return nil, fmt.Errorf("a volume capability has two access types")
	case j.Mount != nil:
		c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{
			FsType: j.Mount.FsType, MountFlags: j.Mount.MountFlags, VolumeMountGroup: j.Mount.VolumeMountGroup,
		}}
	case j.Block != nil:
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	}
	if j.AccessMode == nil {
		return c, nil
	}
	c.AccessMode = &csi.VolumeCapability_AccessMode{}
	if name := j.AccessMode.Mode; name != "" {
		mode, known := csi.VolumeCapability_AccessMode_Mode_value[name]
		if !known {
			number, err := strconv.ParseInt(name, 10, 32)
			if err != nil {
				return nil, fmt.Errorf("unknown access mode %q", name)
			}
			mode = int32(number)
		}
		c.AccessMode.Mode = csi.VolumeCapability_AccessMode_Mode(mode)
	}
	return c, nil
}

// checkUTF8 refuses what JSON cannot hold and what no driver would get either: gRPC sends no such string.
func (r requestJSON) checkUTF8() error {
	for text := range r.texts {
		if !utf8.ValidString(text) {
			return fmt.Errorf("%q is no valid UTF-8", text)
		}
	}
	return nil
}

// texts yields all strings of the request.
func (r requestJSON) texts(yield func(string) bool) {
	texts := []string{r.Name}
	for _, c := range r.VolumeCapabilities {
		if c.Mount != nil {
			texts = append(append(texts, c.Mount.FsType, c.Mount.VolumeMountGroup), c.Mount.MountFlags...)
		}
	}
	if s := r.VolumeContentSource; s != nil && s.Snapshot != nil {
		texts = append(texts, s.Snapshot.SnapshotID)
	} else if s != nil && s.Volume != nil {
		texts = append(texts, s.Volume.VolumeID)
	}
	pairs := []map[string]string{r.Parameters, r.MutableParameters}
	if a := r.AccessibilityRequirements; a != nil {
		for _, term := range slices.Concat(a.Requisite, a.Preferred) {
			pairs = append(pairs, term.Segments)
		}
	}
	for _, m := range pairs {
		texts = slices.AppendSeq(slices.AppendSeq(texts, maps.Keys(m)), maps.Values(m))
	}
	for _, text := range texts {
		if !yield(text) {
			return
		}
	}
}
