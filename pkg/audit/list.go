package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// pageSize is how many objects or volumes one request asks for. A driver may send fewer, or all.
	pageSize = 500
	// maxRestarts is how often the list of volumes is begun anew after the driver has refused a token.
	maxRestarts = 3
)

// errTokenExpired says that the driver does not know its own token any more (ABORTED); the list starts over, as the CSI
// specification says.
var errTokenExpired = errors.New("the driver refuses the token of its own list of volumes")

// eachVolume calls f with every volume that the driver lists.
func eachVolume(ctx context.Context, lister VolumeLister, f func(*csi.Volume)) error {
	token := ""
	for {
		page, err := lister.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: pageSize, StartingToken: token})
		switch {
		case err != nil && token != "" && status.Code(err) == codes.Aborted:
			return fmt.Errorf("%w: %w", errTokenExpired, err)
		case err != nil:
			return fmt.Errorf("list the driver's volumes: %w", err)
		}
		for _, entry := range page.GetEntries() {
			f(entry.GetVolume())
		}
		next := page.GetNextToken()
		switch next {
		case "":
			return nil
		case token:
			return fmt.Errorf("list the driver's volumes: the driver returns the token %q twice in a row", token)
		}
		token = next
	}
}

// eachPV calls f with every PersistentVolume of the cluster until it returns an error.
func eachPV(ctx context.Context, client kubernetes.Interface, f func(*corev1.PersistentVolume) error) error {
	for options := (metav1.ListOptions{Limit: pageSize}); ; {
		page, err := client.CoreV1().PersistentVolumes().List(ctx, options)
		if err != nil {
			return fmt.Errorf("list PersistentVolumes: %w", err)
		}
		if err := each(page.Items, f); err != nil {
			return err
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return nil
		}
	}
}

// eachClaim is eachPV for the claims of all namespaces.
func eachClaim(ctx context.Context, client kubernetes.Interface, f func(*corev1.PersistentVolumeClaim) error) error {
	for options := (metav1.ListOptions{Limit: pageSize}); ; {
		page, err := client.CoreV1().PersistentVolumeClaims(metav1.NamespaceAll).List(ctx, options)
		if err != nil {
			return fmt.Errorf("list PersistentVolumeClaims: %w", err)
		}
		if err := each(page.Items, f); err != nil {
			return err
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return nil
		}
	}
}

func each[T any](items []T, f func(*T) error) error {
	for i := range items {
		if err := f(&items[i]); err != nil {
			return err
		}
	}
	return nil
}

// claimIn returns the claim whose volume name the ID contains, "" for none. All names begin with the prefix and have one
// length.
func claimIn(id, prefix string, claims map[string]string) string {
	length := 0
	for name := range claims {
		length = len(name)
		break
	}
	for at := 0; length > 0; at++ {
		next := strings.Index(id[at:], prefix+"-")
		if next < 0 || at+next+length > len(id) {
			break
		}
		at += next
		if claim, ok := claims[id[at:at+length]]; ok {
			return claim
		}
	}
	return ""
}

func (r *Report) sort() {
	slices.SortFunc(r.Unaccounted, func(a, b Volume) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(r.Missing, func(a, b PersistentVolume) int { return cmp.Compare(a.Name, b.Name) })
}
