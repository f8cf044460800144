package provision

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

const inTreeName = "kubernetes.io/legacy"

func TestOurs(t *testing.T) {
	t.Parallel()
	const (
		ga, beta, migrated = wellknown.AnnStorageProvisioner, wellknown.AnnBetaStorageProvisioner, wellknown.AnnMigratedTo
	)
	for name, tc := range map[string]struct {
		annotations      map[string]string
		want, wantInTree bool // without and with an in-tree name
	}{
		"the annotation names the driver":                 {map[string]string{ga: driverName}, true, true},
		"only the beta annotation is there":               {map[string]string{beta: driverName}, true, true},
		"another name in the annotation wins over beta":   {map[string]string{ga: "other", beta: driverName}, false, false},
		"an empty annotation wins over beta":              {map[string]string{ga: "", beta: driverName}, false, false},
		"the in-tree name, migrated to us":                {map[string]string{ga: inTreeName, migrated: driverName}, false, true},
		"the in-tree name in beta, migrated to us":        {map[string]string{beta: inTreeName, migrated: driverName}, false, true},
		"the in-tree name, not migrated":                  {map[string]string{ga: inTreeName}, false, false},
		"the in-tree name, migrated to another driver":    {map[string]string{ga: inTreeName, migrated: "other"}, false, false},
		"a foreign name, migrated to us":                  {map[string]string{ga: "other", migrated: driverName}, false, false},
		"no provisioner, migrated to us":                  {map[string]string{migrated: driverName}, false, false},
		"the driver's name, migrated to another":          {map[string]string{ga: driverName, migrated: "other"}, true, true},
		"nothing":                                         {nil, false, false},
		"an empty annotation does not match no in-tree":   {map[string]string{ga: "", migrated: driverName}, false, false},
		"a name that only begins like ours is not ours":   {map[string]string{ga: driverName + ".evil"}, false, false},
		"upper case is another name":                      {map[string]string{ga: "DRIVER.example.com"}, false, false},
		"the selected node makes no difference to whose.": {map[string]string{ga: driverName, wellknown.AnnSelectedNode: "n"}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := fixture.Claim("c")
			for key, value := range tc.annotations {
				b.Annotation(key, value)
			}
			if got := (Settings{Driver: driverName}).ours(b.Obj()); got != tc.want {
				t.Errorf("without an in-tree name: %v, want %v", got, tc.want)
			}
			if got := (Settings{Driver: driverName, InTree: inTreeName}).ours(b.Obj()); got != tc.wantInTree {
				t.Errorf("with an in-tree name: %v, want %v", got, tc.wantInTree)
			}
		})
	}
}

func TestSelects(t *testing.T) {
	t.Parallel()
	claim := func() *fixture.ClaimBuilder { return fixture.Claim("c").UID("u").Class("fast").For(driverName) }
	class := func() *fixture.ClassBuilder { return fixture.Class("fast").Provisioner(driverName) }
	holder := func(uid string) *corev1.PersistentVolume {
		return fixture.PV("pvc-u").ProvisionedBy(driverName).BoundTo(fixture.Claim("c").UID(uid).Obj()).Obj()
	}
	for name, tc := range map[string]struct {
		claim  *fixture.ClaimBuilder
		class  *storagev1.StorageClass
		holder *corev1.PersistentVolume
		want   selection
	}{
		"ours and its turn":                                            {claim(), class().Obj(), nil, attempt},
		"bound":                                                        {claim().Bound("pv"), class().Obj(), nil, drop},
		"bound comes before a missing class":                           {claim().Bound("pv"), nil, nil, drop},
		"another provisioner's":                                        {fixture.Claim("c").For("other"), class().Obj(), nil, drop},
		"another's comes before a missing class":                       {fixture.Claim("c").For("other"), nil, nil, drop},
		"a claim that goes is not begun":                               {claim().Terminating(), class().Obj(), nil, drop},
		"the class is missing":                                         {claim(), nil, nil, classMissing},
		"it waits for a node":                                          {claim(), class().WaitForFirstConsumer().Obj(), nil, drop},
		"an empty node is none":                                        {claim().SelectedNode(""), class().WaitForFirstConsumer().Obj(), nil, drop},
		"the node is there":                                            {claim().SelectedNode("n"), class().WaitForFirstConsumer().Obj(), nil, attempt},
		"the old name of the annotation is no node":                    {claim().Annotation(wellknown.AnnAlphaSelectedNode, "n"), class().WaitForFirstConsumer().Obj(), nil, drop},
		"a class without a binding mode is Immediate":                  {claim(), &storagev1.StorageClass{Provisioner: driverName}, nil, attempt},
		"its PersistentVolume is there":                                {claim(), class().Obj(), holder("u"), dropBinding},
		"one of the name for another claim is an error of the attempt": {claim(), class().Obj(), holder("another"), attempt},
		"the class names another provisioner":                          {claim(), class().Provisioner("other").Obj(), nil, dropForeign},
		"waiting for a node comes before a wrong provisioner":          {claim(), class().WaitForFirstConsumer().Provisioner("other").Obj(), nil, drop},
		"the class's provisioner may be the in-tree plugin":            {claim(), class().Provisioner(inTreeName).Obj(), nil, attempt},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, reason := Settings{Driver: driverName, InTree: inTreeName}.selects(candidate{tc.claim.Obj(), tc.class, tc.holder})
			if got != tc.want {
				t.Errorf("%d, want %d", got, tc.want)
			}
			if (reason == "") != (got == attempt) {
				t.Errorf("reason %q", reason)
			}
		})
	}
}
