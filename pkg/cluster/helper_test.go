package cluster

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

func uidOf(namespace, name string) types.UID { return types.UID("uid-" + namespace + "-" + name) }

func fakeList(context.Context, metav1.ListOptions) (runtime.Object, error) {
	return &corev1.PersistentVolumeClaimList{}, nil
}

func fakeWatch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return watch.NewFake(), nil
}
