package provision

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// errVolumeInUse says that a volume belongs to another PersistentVolume: the driver has returned it a second time, because
// two claims have one volume name, or it is about to be deleted. It must not get a second one, and must not be deleted.
var errVolumeInUse = errors.New("the driver answered with a volume that is in use")

// errExtraVolume says that the claim has another volume by now, made by another process: this one must be deleted.
var errExtraVolume = errors.New("the claim has another volume")

// HandleOf returns a function that returns the handle by which the driver knows the volume of a PersistentVolume, also of
// one of an in-tree plugin; translator may be nil. The handle is "" for the volume of another driver, and for one that
// cannot be translated. The function may be called concurrently if the translator may.
func HandleOf(driver string, translator Translator) func(pv *corev1.PersistentVolume) string {
	return func(pv *corev1.PersistentVolume) string {
		if pv.Spec.CSI == nil && translator != nil && translator.IsMigratable(pv) {
			asCSI, err := translator.TranslateToCSI(pv)
			if err != nil {
				return ""
			}
			pv = asCSI
		}
		if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != driver {
			return ""
		}
		return pv.Spec.CSI.VolumeHandle
	}
}

func usedBy(pvName, handle string) error {
	return fmt.Errorf("%w: %q is the volume of PersistentVolume %s", errVolumeInUse, handle, pvName)
}
