package driver

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // what codec is made of
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	// fieldRequirements is the number of accessibility_requirements in csi.CreateVolumeRequest.
	fieldRequirements protoreflect.FieldNumber = 7
	// shareFrom is the size from which encoded requirements are worth a buffer of their own.
	shareFrom = 4 << 10
)

// codec is gRPC's codec but for the accessibility requirements that package topology has encoded: they go to the
// connection as they are. In a big cluster they are hundreds of kilobytes, the same for all calls, and gRPC's own
// codec would copy them into a buffer of a megabyte for each call in flight. It also tells an exchange of its response.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{CodecV2: encoding.GetCodecV2("proto")} }

// Marshal encodes a message. The result shares the encoded requirements, which must never change.
func (c codec) Marshal(message any) (mem.BufferSlice, error) {
	create, ok := message.(*csi.CreateVolumeRequest)
	if !ok {
		return c.CodecV2.Marshal(message)
	}
	shared := encodedRequirements(create.GetAccessibilityRequirements())
	if len(shared) < shareFrom {
		return c.CodecV2.Marshal(message)
	}
	rest, err := proto.Marshal(withoutRequirements(create))
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", message, err)
	}
	// Fields of a message may come in any order.
	rest = protowire.AppendTag(rest, fieldRequirements, protowire.BytesType)
	rest = protowire.AppendVarint(rest, uint64(len(shared)))
	return mem.BufferSlice{mem.SliceBuffer(rest), mem.SliceBuffer(shared)}, nil
}

// Unmarshal decodes a message.
func (c codec) Unmarshal(data mem.BufferSlice, message any) error {
	if r, ok := message.(*received); ok {
		r.exchange.message.Store(true)
		message = r.reply
	}
	return c.CodecV2.Unmarshal(data, message)
}

// encodedRequirements returns the encoding of requirements that carry nothing else; nil for all others.
func encodedRequirements(r *csi.TopologyRequirement) []byte {
	if len(r.GetRequisite()) > 0 || len(r.GetPreferred()) > 0 {
		return nil
	}
	return r.ProtoReflect().GetUnknown()
}

// withoutRequirements returns a copy of the request that shares all fields with it but lacks that one.
func withoutRequirements(create *csi.CreateVolumeRequest) proto.Message {
	from := create.ProtoReflect()
	rest := from.New()
	from.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if field.Number() != fieldRequirements {
			rest.Set(field, value)
		}
		return true
	})
	rest.SetUnknown(from.GetUnknown())
	return rest.Interface()
}
