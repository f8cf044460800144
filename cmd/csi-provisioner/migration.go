package main

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/controllers/provision"
)

// migrated tells whether a driver of this name replaces an in-tree plugin.
func migrated(driverName string) bool { return inTreeName(driverName) != "" }

// inTreeName returns the name of the in-tree plugin that the driver replaces, empty when it replaces none.
func inTreeName(driverName string) string {
	translator := csitranslation.New()
	if !translator.IsMigratedCSIDriverByName(driverName) {
		return ""
	}
	name, err := translator.GetInTreeNameFromCSIName(driverName)
	if err != nil {
		return ""
	}
	return name
}

// translator is the translation library with the shape that the controller asks for.
type translator struct {
	lib    csitranslation.CSITranslator
	logger klog.Logger
}

var _ provision.Translator = translator{}

func newTranslator(logger klog.Logger) translator {
	return translator{lib: csitranslation.New(), logger: logger}
}

func (t translator) TranslateClass(inTree string, class *storagev1.StorageClass) (*storagev1.StorageClass, error) {
	return t.lib.TranslateInTreeStorageClassToCSI(t.logger, inTree, class.DeepCopy())
}

func (t translator) TranslateToInTree(pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	return t.lib.TranslateCSIPVToInTree(pv.DeepCopy())
}

func (t translator) TranslateToCSI(pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	return t.lib.TranslateInTreePVToCSI(t.logger, pv.DeepCopy())
}

func (t translator) IsMigratable(pv *corev1.PersistentVolume) bool { return t.lib.IsPVMigratable(pv) }
