package source

import (
	"errors"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
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

// request returns the claim's storage request in bytes, fractions rounded up, and whether there is one.
func request(claim *corev1.PersistentVolumeClaim) (int64, bool) {
	size, ok := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	return size.Value(), ok
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
