package memdriver

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Call is the record of one call. Its messages are shared between copies and read-only.
type Call struct {
	// Seq counts from 1 in the order calls begin.
	Seq int
	// Method is the short name, as "CreateVolume".
	Method string
	// Key is the name of what is created or the id of what is meant; empty for calls about nothing.
	Key string
	// Request is a copy with the values of secrets emptied.
	Request proto.Message
	// SecretKeys are the sorted keys of the secrets that came along.
	SecretKeys []string
	// Metadata came along with the request.
	Metadata metadata.MD
	// Answer is what the caller got; nil with an error and while the call runs.
	Answer proto.Message
	// Code is the answer's code. A caller that gave up is Canceled or DeadlineExceeded.
	Code codes.Code
	// Message is the error text.
	Message string
	// Worked says that the work has been done, whatever the caller was told.
	Worked bool
	// Begin and End are the times; End is zero while the call runs.
	Begin, End time.Time
	// Overlaps are the calls for the same key, of any method, that ran when this one began.
	Overlaps []int
}

// Ended says whether the call has been answered.
func (c Call) Ended() bool { return !c.End.IsZero() }

// Create returns the request of a CreateVolume call, nil for other calls.
func (c Call) Create() *csi.CreateVolumeRequest {
	request, _ := c.Request.(*csi.CreateVolumeRequest)
	return request
}

// Delete returns the request of a DeleteVolume call, nil for other calls.
func (c Call) Delete() *csi.DeleteVolumeRequest {
	request, _ := c.Request.(*csi.DeleteVolumeRequest)
	return request
}

// VolumeID is the id in the answer of a CreateVolume call; empty if there is none.
func (c Call) VolumeID() string {
	response, _ := c.Answer.(*csi.CreateVolumeResponse)
	return response.GetVolume().GetVolumeId()
}

// String is the call as a line for people.
func (c Call) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-14s %s", c.Method, c.Key)
	if request := c.Create(); request != nil {
		fmt.Fprintf(&b, "  %s", size(request.GetCapacityRange().GetRequiredBytes()))
	}
	if len(c.SecretKeys) > 0 {
		fmt.Fprintf(&b, "  secrets %s", strings.Join(c.SecretKeys, ","))
	}
	switch {
	case !c.Ended():
		b.WriteString("  running")
		return b.String()
	case c.Code != codes.OK:
		fmt.Fprintf(&b, "  → %s: %s", c.Code, c.Message)
	default:
		b.WriteString("  → " + c.gist())
	}
	fmt.Fprintf(&b, "  (%s)", c.End.Sub(c.Begin).Round(time.Millisecond))
	if len(c.Overlaps) > 0 {
		fmt.Fprintf(&b, "  overlaps %v", c.Overlaps)
	}
	return b.String()
}

func (c Call) gist() string {
	switch answer := c.Answer.(type) {
	case *csi.CreateVolumeResponse:
		volume := answer.GetVolume()
		words := []string{volume.GetVolumeId(), size(volume.GetCapacityBytes())}
		for _, topology := range volume.GetAccessibleTopology() {
			words = append(words, "in "+segmentKey(topology.GetSegments()))
		}
		return strings.Join(words, " ")
	case *csi.GetCapacityResponse:
		return size(answer.GetAvailableCapacity())
	case *csi.GetPluginInfoResponse:
		return answer.GetName()
	case *csi.CreateSnapshotResponse:
		return answer.GetSnapshot().GetSnapshotId()
	}
	return "OK"
}

// MarshalJSON writes the call with its messages in protobuf's JSON form.
func (c Call) MarshalJSON() ([]byte, error) {
	line := map[string]any{
		"seq": c.Seq, "method": c.Method, "key": c.Key, "code": c.Code.String(), "worked": c.Worked,
		"begin": c.Begin.UTC().Format(time.RFC3339Nano), "end": c.End.UTC().Format(time.RFC3339Nano),
	}
	for name, message := range map[string]proto.Message{"request": c.Request, "answer": c.Answer} {
		if message == nil {
			continue
		}
		text, err := protojson.Marshal(message)
		if err != nil {
			return nil, fmt.Errorf("%s of call %d: %w", name, c.Seq, err)
		}
		line[name] = json.RawMessage(text)
	}
	if c.Message != "" {
		line["message"] = c.Message
	}
	if len(c.SecretKeys) > 0 {
		line["secretKeys"] = c.SecretKeys
	}
	if len(c.Overlaps) > 0 {
		line["overlaps"] = c.Overlaps
	}
	return json.Marshal(line)
}

// keyOf returns what a request is about.
func keyOf(request any) string {
	switch r := request.(type) {
	case *csi.CreateVolumeRequest:
		return r.GetName()
	case *csi.CreateSnapshotRequest:
		return r.GetName()
	case *csi.DeleteSnapshotRequest:
		return r.GetSnapshotId()
	case interface{ GetVolumeId() string }:
		return r.GetVolumeId()
	}
	return ""
}

// withoutSecrets returns a copy of the message whose secret values are empty, and the keys of the secrets.
func withoutSecrets(message proto.Message) (proto.Message, []string) {
	clean := proto.Clone(message)
	reflected := clean.ProtoReflect()
	field := reflected.Descriptor().Fields().ByName("secrets")
	if field == nil || !field.IsMap() {
		return clean, nil
	}
	keys := map[string]bool{}
	reflected.Get(field).Map().Range(func(key protoreflect.MapKey, _ protoreflect.Value) bool {
		keys[key.String()] = true
		return true
	})
	if len(keys) == 0 {
		return clean, nil
	}
	secrets := reflected.Mutable(field).Map()
	for key := range keys {
		secrets.Set(protoreflect.ValueOfString(key).MapKey(), protoreflect.ValueOfString(""))
	}
	return clean, slices.Sorted(maps.Keys(keys))
}

func size(bytes int64) string {
	for _, unit := range []struct {
		bytes int64
		name  string
	}{{1 << 40, "Ti"}, {1 << 30, "Gi"}, {1 << 20, "Mi"}, {1 << 10, "Ki"}} {
		if bytes >= unit.bytes && bytes%unit.bytes == 0 {
			return fmt.Sprintf("%d%s", bytes/unit.bytes, unit.name)
		}
	}
	return fmt.Sprintf("%dB", bytes)
}
