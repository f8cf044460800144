package operations

import (
	"encoding/json"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
)

// fill sets each field of a message that JSON shows, and each member of a oneof in turn: choose picks it.
func fill(m protoreflect.Message, choose int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if oneof := field.ContainingOneof(); oneof != nil && oneof.Fields().Get(choose%oneof.Fields().Len()) != field {
			continue
		}
		if m.Descriptor().Name() == "CreateVolumeRequest" && field.Name() == "secrets" {
			continue
		}
		switch {
		case field.IsMap():
			m.Mutable(field).Map().Set(protoreflect.ValueOfString("key").MapKey(), protoreflect.ValueOfString("<va&lue>"))
		case field.IsList() && field.Message() != nil:
			list := m.Mutable(field).List()
			for range 2 {
				fill(list.AppendMutable().Message(), choose)
			}
		case field.IsList():
			m.Mutable(field).List().Append(protoreflect.ValueOfString("one"))
		case field.Message() != nil:
			fill(m.Mutable(field).Message(), choose)
		case field.Kind() == protoreflect.StringKind:
			m.Set(field, protoreflect.ValueOfString("text of "+string(field.Name())))
		case field.Kind() == protoreflect.Int64Kind:
			m.Set(field, protoreflect.ValueOfInt64(1<<60))
		case field.Kind() == protoreflect.EnumKind:
			m.Set(field, protoreflect.ValueOfEnum(3))
		default:
			panic("a field of a kind that no request had: " + field.FullName())
		}
	}
}

// The JSON is the same as protojson's and loses no field, also none that a later version of CSI adds.
func TestRequestJSON(t *testing.T) {
	t.Parallel()
	unnamed := &csi.CreateVolumeRequest{VolumeCapabilities: []*csi.VolumeCapability{{AccessMode: &csi.VolumeCapability_AccessMode{Mode: 99}}}}
	requests := []*csi.CreateVolumeRequest{
		{}, {CapacityRange: &csi.CapacityRange{}}, {VolumeContentSource: &csi.VolumeContentSource{}}, {AccessibilityRequirements: &csi.TopologyRequirement{}},
		{VolumeCapabilities: []*csi.VolumeCapability{{}, {AccessMode: &csi.VolumeCapability_AccessMode{}}}}, unnamed,
	}
	for choose := range 2 {
		whole := &csi.CreateVolumeRequest{}
		fill(whole.ProtoReflect(), choose)
		requests = append(requests, whole)
	}
	for _, req := range requests {
		text, err := MarshalRequest(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := UnmarshalRequest(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if diff := cmp.Diff(req, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
		if req == unnamed {
			continue // which protojson shows as a number
		}
		theirs, err := protojson.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		var want, is any
		if json.Unmarshal(theirs, &want) != nil || json.Unmarshal(text, &is) != nil {
			t.Fatalf("no JSON: %s, %s", theirs, text)
		}
		if diff := cmp.Diff(want, is); diff != "" {
			t.Errorf("protojson (-want +got):\n%s", diff)
		}
	}
}

func TestRequestJSONRefuses(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"an unknown field":        `{"colour":"red"}`,
		"secrets":                 `{"secrets":{"a":"b"}}`,
		"an unknown mode":         `{"volumeCapabilities":[{"accessMode":{"mode":"SOMETIMES"}}]}`,
		"two access types":        `{"volumeCapabilities":[{"mount":{},"block":{}}]}`,
		"two sources":             `{"volumeContentSource":{"snapshot":{},"volume":{}}}`,
		"a number without quotes": `{"capacityRange":{"requiredBytes":1}}`,
	} {
		if req, err := UnmarshalRequest([]byte(text)); err == nil {
			t.Errorf("%s: %v", name, req)
		}
	}
	bad := "\xff"
	for _, req := range []*csi.CreateVolumeRequest{
		{Name: bad}, {Parameters: map[string]string{"a": bad}}, {MutableParameters: map[string]string{bad: ""}},
		{VolumeCapabilities: []*csi.VolumeCapability{{AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{MountFlags: []string{bad}}}}}},
		{VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: bad}}}},
		{AccessibilityRequirements: &csi.TopologyRequirement{Preferred: []*csi.Topology{{Segments: map[string]string{"zone": bad}}}}},
	} {
		if text, err := MarshalRequest(req); err == nil {
			t.Errorf("no valid UTF-8 was taken: %s", text)
		}
	}
	secret := &csi.CreateVolumeRequest{Secrets: map[string]string{"password": "hush"}}
	if text, err := MarshalRequest(secret); err != nil || string(text) != "{}" || !proto.Equal(secret, &csi.CreateVolumeRequest{Secrets: map[string]string{"password": "hush"}}) {
		t.Errorf("secrets: %s, %v", text, err)
	}
}
