package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
)

const (
	driverName = "mem.csi.example.com"
	className  = "demo"
	namespace  = "default"
	claimName  = "data"
	claimSize  = "1Gi"
)

func (d *demo) startCluster(ctx context.Context) (err error) {
	d.cluster, err = cluster.Start(ctx, cluster.Options{
		Dir: filepath.Join(d.dir, "cluster"), Scheduler: true, Logf: d.note,
	})
	if err != nil {
		return err
	}
	// A node, so that the scheduler has where to put a pod that somebody makes while all stays up.
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("100"),
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: corev1.NodeStatus{
		Capacity: room, Allocatable: room, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}}
	if _, err := d.cluster.Client().CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return err
	}
	csiNode := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node.Name}, Spec: storagev1.CSINodeSpec{
		Drivers: []storagev1.CSINodeDriver{{Name: driverName, NodeID: node.Name}},
	}}
	_, err = d.cluster.Client().StorageV1().CSINodes().Create(ctx, csiNode, metav1.CreateOptions{})
	return err
}

func (d *demo) startSidecar(ctx context.Context) (err error) {
	d.driver, err = cluster.StartProcess(cluster.Command{
		Name: "memdriver", Path: filepath.Join(d.binDir, "memdriver"), LogFile: filepath.Join(d.dir, "memdriver.log"),
		Args: []string{"--socket=" + d.socket(), "--name=" + driverName},
	})
	if err != nil {
		return err
	}
	err = d.driver.WaitReady(ctx, func(context.Context) error {
		_, err := os.Stat(d.socket())
		return err
	})
	if err != nil {
		return err
	}
	d.note("the driver serves its socket")
	d.callsShown = len(d.driver.Log())
	port, err := cluster.FreePort()
	if err != nil {
		return err
	}
	endpoint := fmt.Sprintf("127.0.0.1:%d", port)
	d.metricsURL = "http://" + endpoint + "/metrics"
	d.provisioner, err = cluster.StartProcess(cluster.Command{
		Name: "csi-provisioner", Path: filepath.Join(d.binDir, "csi-provisioner"), LogFile: filepath.Join(d.dir, "csi-provisioner.log"),
		Args: []string{"--csi-address=" + d.socket(), "--http-endpoint=" + endpoint, "-v=4"},
		Env:  []string{"KUBECONFIG=" + d.cluster.Kubeconfig()},
	})
	if err != nil {
		return err
	}
	ctx, cancel := limit(ctx)
	defer cancel()
	err = d.provisioner.WaitReady(ctx, func(ctx context.Context) error { return d.ask(ctx, "http://"+endpoint+"/readyz") })
	if err != nil {
		return err
	}
	d.note("csi-provisioner is ready")
	return nil
}

func (d *demo) createClaim(ctx context.Context) error {
	client := d.cluster.Client()
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: className}, Provisioner: driverName}
	if _, err := client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return err
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: claimName},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class.Name,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(claimSize)}},
		},
	}
	if _, err := client.CoreV1().PersistentVolumeClaims(namespace).Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		return err
	}
	d.note("claim %s/%s asks for %s of class %s", namespace, claimName, claimSize, className)
	return nil
}

func (d *demo) waitBound(ctx context.Context) error {
	begin := time.Now()
	ctx, cancel := limit(ctx)
	defer cancel()
	err := d.provisioner.WaitReady(ctx, func(ctx context.Context) error {
		claim, err := d.cluster.Client().CoreV1().PersistentVolumeClaims(namespace).Get(ctx, claimName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if claim.Status.Phase != corev1.ClaimBound {
			return fmt.Errorf("the claim is %s", claim.Status.Phase)
		}
		d.pvName = claim.Spec.VolumeName
		return nil
	})
	if err != nil {
		return err
	}
	d.note("Bound to %s after %d ms", d.pvName, time.Since(begin).Milliseconds())
	return nil
}

func (d *demo) deleteClaim(ctx context.Context) error {
	begin := time.Now()
	client := d.cluster.Client().CoreV1()
	if err := client.PersistentVolumeClaims(namespace).Delete(ctx, claimName, metav1.DeleteOptions{}); err != nil {
		return err
	}
	ctx, cancel := limit(ctx)
	defer cancel()
	err := d.provisioner.WaitReady(ctx, func(ctx context.Context) error {
		_, err := client.PersistentVolumes().Get(ctx, d.pvName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, fmt.Errorf("%s is still there", d.pvName))
	})
	if err != nil {
		return err
	}
	d.note("claim and PersistentVolume are gone after %d ms", time.Since(begin).Milliseconds())
	d.showCalls() // Before we ask the driver ourselves.
	volumes, err := d.volumes(ctx)
	if err != nil {
		return err
	}
	if len(volumes) > 0 {
		return fmt.Errorf("the driver still has the volumes %v", volumes)
	}
	d.note("the driver has no volumes")
	return nil
}

// volumes asks the driver itself which volumes there are.
func (d *demo) volumes(ctx context.Context) ([]string, error) {
	conn, err := grpc.NewClient("unix://"+d.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	answer, err := csi.NewControllerClient(conn).ListVolumes(ctx, &csi.ListVolumesRequest{})
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, entry := range answer.GetEntries() {
		ids = append(ids, entry.GetVolume().GetVolumeId())
	}
	return ids, nil
}

func (d *demo) socket() string { return filepath.Join(d.dir, "csi.sock") }

// ask is nil when the URL answers 200.
func (d *demo) ask(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, response.Status)
	}
	return nil
}

// limit bounds what takes a second when all is well.
func limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, time.Minute, errors.New("a minute has passed"))
}
