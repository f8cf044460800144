package features_test

import (
	"fmt"

	"github.com/csi-sidecars/external-provisioner/pkg/features"
)

func ExampleResolve() {
	var asked features.Asked // a flag value
	for _, text := range []string{"AllAlpha=true,HonorPVReclaimPolicy=true", "ReleaseLeaderElectionOnExit=false"} {
		if err := asked.Set(text); err != nil {
			fmt.Println(err)
		}
	}
	gates, notes, err := features.Resolve(asked)
	fmt.Printf("%+v\n%q\n%v\n", gates, notes, err)
	// Output:
	// {Topology:true VolumeAttributesClass:true VolumeAttributesClassSet:false CrossNamespaceVolumeDataSource:true ReleaseLeaderElectionOnExit:false}
	// ["feature gate HonorPVReclaimPolicy is ignored, remove it: the reclaim policy of a PersistentVolume is always honoured"]
	// <nil>
}
