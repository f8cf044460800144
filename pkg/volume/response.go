package volume

import (
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
)

// BadResponse is an OK answer to CreateVolume that cannot be used. Its outcome is Background: a volume may
// exist. Whoever has deleted the volume VolumeID wraps the error with an outcome of its own, which then counts.
type BadResponse struct {
	// Err says what is wrong with the answer. Never nil.
	Err error
	// VolumeID is the volume to delete, "" when the answer names none and there is nothing to clean up.
	VolumeID string
}

// Error returns the text of Err.
func (b *BadResponse) Error() string { return b.Err.Error() }

// Unwrap returns Err.
func (b *BadResponse) Unwrap() error { return b.Err }

// CheckResponse checks the answer to req, which may be nil as may the volume in it. It returns nil or a
// *BadResponse. A size of 0 means that the driver does not tell and is fine, as is any size above the
// requested one. A content source of another type than the requested one is let pass: drivers return it loosely.
func CheckResponse(req *csi.CreateVolumeRequest, resp *csi.CreateVolumeResponse) error {
	vol := resp.GetVolume()
	id := vol.GetVolumeId()
	size, required := vol.GetCapacityBytes(), req.GetCapacityRange().GetRequiredBytes()
	switch {
	case vol == nil:
		return bad("", errors.New("driver returned no volume"))
	case id == "":
		return bad("", errors.New("driver returned a volume with an empty id"))
	case size < 0:
		return bad(id, fmt.Errorf("driver returned volume %q with a negative capacity of %d bytes, requested %d", id, size, required))
	case size > 0 && size < required:
		return bad(id, fmt.Errorf("created volume capacity %d less than requested capacity %d", size, required))
	case req.GetVolumeContentSource() != nil && vol.GetContentSource() == nil:
		return bad(id, fmt.Errorf("volume content source missing: driver returned volume %q without saying that it has the requested content", id))
	}
	return nil
}

func bad(id string, err error) error {
	return &BadResponse{Err: outcome.With(outcome.Background, err), VolumeID: id}
}
