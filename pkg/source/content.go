package source

import (
	"errors"
	"fmt"
	"math"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Content is what a claim's source means for the CreateVolume request.
type Content struct {
	// VolumeContentSource is for the request's field of that name.
	VolumeContentSource *csi.VolumeContentSource
	// MinBytes is the size to ask for: what the claim asks for or, where growing to the size of the source is
	// wanted, the size of the source if that is more. Never less than the claim's request.
	MinBytes int64
}

// check is one row of a list of checks, whose order is the order in which users see their failures.
type check[F any] func(f F) error

// first returns the error of the first check that fails.
func first[F any](f F, checks []check[F]) error {
	for _, c := range checks {
		if err := c(f); err != nil {
			return err
		}
	}
	return nil
}

// unfit says of which source err speaks.
func unfit(r Reference, err error) error {
	return fmt.Errorf("%s %s/%s as data source: %w", r.KindName, r.Namespace, r.Name, err)
}

// RequestBytes returns the size that the claim asks for in bytes, and whether it asks for any.
func RequestBytes(claim *corev1.PersistentVolumeClaim) (int64, bool) {
	size, ok := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	return inBytes(&size), ok
}

// inBytes returns a size in bytes, fractions rounded up; one that no int64 holds is the largest that it holds.
// Quantity.Value makes 0 of 1e30.
func inBytes(size *resource.Quantity) int64 {
	if size.CmpInt64(math.MaxInt64) >= 0 {
		return math.MaxInt64
	}
	return size.Value()
}

// modeOf returns the volume mode that a pointer stands for.
func modeOf(mode *corev1.PersistentVolumeMode) corev1.PersistentVolumeMode {
	if mode == nil {
		return corev1.PersistentVolumeFilesystem
	}
	return *mode
}

// cause returns why an object is not there.
func cause(err error) error {
	if err == nil {
		return errors.New("not found")
	}
	return err
}
