package operations

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

const (
	// maxTopologyBytes is how long a topology requirement may be, as JSON, to be kept whole.
	maxTopologyBytes = 8 << 10
	// compressAbove is the length of the text above which the request in it is compressed.
	compressAbove = 200 << 10
	// maxBytes bounds the text. All annotations of an object share 256 KiB; the rest is for others.
	maxBytes = 240 << 10
	// maxRequestBytes bounds a request that was compressed. gRPC sends no more than 4 MiB by default, and JSON may be
	// a few times as long.
	maxRequestBytes = 16 << 20
)

var (
	// ErrTooLarge means that an operation does not fit into an annotation.
	ErrTooLarge = errors.New("the operation is too large for an annotation")
	// ErrUnknownVersion means that a newer program, or one that is too old, has written the operation.
	ErrUnknownVersion = errors.New("unknown version")
	// ErrOtherLease means that the operation was written into another Lease: this one was restored from a backup or
	// copied, and what it says may have ended long ago, or may be about another cluster.
	ErrOtherLease = errors.New("the operation was written into a Lease with another UID")
)

// header is what every version has.
type header struct {
	Version  int       `json:"version"`
	LeaseUID types.UID `json:"leaseUID"`
}

// wire is version 1.
type wire struct {
	header
	Operation
	Secrets secretRefs      `json:"secrets,omitzero"`
	Request json.RawMessage `json:"request,omitempty"`
	// Compressed is the request, compressed with gzip, in place of Request.
	Compressed []byte `json:"requestGzip,omitempty"`
}

// secretRefs are volume.SecretRefs with the names that they have in JSON.
type secretRefs struct {
	Provisioner       *corev1.SecretReference `json:"provisioner,omitempty"`
	ControllerPublish *corev1.SecretReference `json:"controllerPublish,omitempty"`
	NodeStage         *corev1.SecretReference `json:"nodeStage,omitempty"`
	NodePublish       *corev1.SecretReference `json:"nodePublish,omitempty"`
	ControllerExpand  *corev1.SecretReference `json:"controllerExpand,omitempty"`
	NodeExpand        *corev1.SecretReference `json:"nodeExpand,omitempty"`
	ControllerModify  *corev1.SecretReference `json:"controllerModify,omitempty"`
}

// Encode returns the text for the Lease with that UID: the same text for the same operation. A topology requirement
// that is too long is reduced. The error is ErrTooLarge, or says that the request is no valid UTF-8, which no driver
// would get either.
func Encode(op Operation, lease types.UID) (string, error) {
	request, reduced, err := encodeRequest(op.Request)
	if err != nil {
		return "", fmt.Errorf("encode the CreateVolume request: %w", err)
	}
	op.TopologyReduced = op.TopologyReduced || reduced
	w := wire{header: header{Version: Version, LeaseUID: lease}, Operation: op, Secrets: secretRefs(op.Secrets), Request: request}
	text, err := json.Marshal(w)
	if err != nil {
		return "", fmt.Errorf("encode the operation: %w", err)
	}
	if len(text) > compressAbove {
		if w.Compressed, err = compress(request); err != nil {
			return "", fmt.Errorf("compress the CreateVolume request: %w", err)
		}
		w.Request = nil
		if text, err = json.Marshal(w); err != nil {
			return "", fmt.Errorf("encode the operation: %w", err)
		}
	}
	if len(text) > maxBytes {
		return "", fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(text), maxBytes)
	}
	return string(text), nil
}

// encodeRequest returns the request as JSON without secrets, and whether its topology was reduced. req is not changed.
func encodeRequest(req *csi.CreateVolumeRequest) (text []byte, reduced bool, err error) {
	requirement := req.GetAccessibilityRequirements()
	if requirement == nil {
		text, err = MarshalRequest(req)
		return text, false, err
	}
	topology, err := json.Marshal(requirementsToJSON(requirement))
	if err != nil {
		return nil, false, err
	}
	if len(topology) > maxTopologyBytes {
		reduced = true
		req = &csi.CreateVolumeRequest{
			Name: req.GetName(), CapacityRange: req.GetCapacityRange(), VolumeCapabilities: req.GetVolumeCapabilities(),
			Parameters: req.GetParameters(), VolumeContentSource: req.GetVolumeContentSource(),
			AccessibilityRequirements: firstTerm(requirement), MutableParameters: req.GetMutableParameters(),
		}
	}
	text, err = MarshalRequest(req)
	return text, reduced, err
}

// firstTerm returns a requirement with the first preferred term only, or without one with the first requisite.
func firstTerm(r *csi.TopologyRequirement) *csi.TopologyRequirement {
	terms := r.GetPreferred()
	if len(terms) == 0 {
		terms = r.GetRequisite()
	}
	if len(terms) == 0 {
		return nil
	}
	return &csi.TopologyRequirement{Requisite: terms[:1], Preferred: terms[:1]}
}

// Decode returns the operation that the Lease with that UID says. The error is ErrUnknownVersion, ErrOtherLease, or
// says what is wrong with the text.
func Decode(text string, lease types.UID) (Operation, error) {
	var h header
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		return Operation{}, fmt.Errorf("the operation is no JSON that we write: %w", err)
	}
	switch {
	case h.Version != Version: // version 1 is the first
		return Operation{}, fmt.Errorf("%w %d of an operation, this program knows version %d", ErrUnknownVersion, h.Version, Version)
	case h.LeaseUID != lease:
		return Operation{}, fmt.Errorf("%w: it says %q, the Lease has %q", ErrOtherLease, h.LeaseUID, lease)
	}
	var w wire
	if err := unmarshalStrict([]byte(text), &w); err != nil {
		return Operation{}, fmt.Errorf("the operation cannot be read: %w", err)
	}
	request := []byte(w.Request)
	if w.Compressed != nil {
		var err error
		if request, err = decompress(w.Compressed); err != nil {
			return Operation{}, fmt.Errorf("the compressed request cannot be read: %w", err)
		}
	}
	op := w.Operation
	op.Secrets = volume.SecretRefs(w.Secrets)
	var err error
	if op.Request, err = UnmarshalRequest(request); err != nil {
		return Operation{}, fmt.Errorf("the request cannot be read: %w", err)
	}
	return op, op.check()
}

// unmarshalStrict refuses fields that it does not know: a request of which a part is not known is another request.
func unmarshalStrict(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// check names what an operation cannot be without.
func (op Operation) check() error {
	var errs []error
	for _, field := range []struct {
		name, value string
	}{
		{"driver", op.Driver},
		{"claim.namespace", op.Claim.Namespace},
		{"claim.name", op.Claim.Name},
		{"claim.uid", string(op.Claim.UID)},
		{"class.name", op.Class.Name},
		{"class.uid", string(op.Class.UID)},
		{"volumeName", op.VolumeName},
		{"persistentVolume.provisioner", op.PersistentVolume.Provisioner},
	} {
		if field.value == "" {
			errs = append(errs, fmt.Errorf("the operation has no %s", field.name))
		}
	}
	if op.Request.GetName() != op.VolumeName {
		errs = append(errs, fmt.Errorf("the request is for the volume %q, the operation for %q", op.Request.GetName(), op.VolumeName))
	}
	return errors.Join(errs...)
}

func compress(text []byte) ([]byte, error) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func decompress(data []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(r, maxRequestBytes+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxRequestBytes {
		return nil, fmt.Errorf("it is longer than %d bytes", maxRequestBytes)
	}
	return text, nil
}
