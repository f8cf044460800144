package nodecleanup

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// Nothing is asked while nobody waits, and nothing about what is gone again by the next round.
func TestAHealthyClusterCostsNothing(t *testing.T) {
	inScene(t, func(s *scene) {
		s.pass(10 * time.Minute)
		claim, pv := waiting(1, "lost"), leftover(1, "lost")
		s.onClaim(nil, claim)
		s.onPV(nil, pv)
		s.pass(20 * time.Second)
		bound := claim.DeepCopy()
		bound.Spec.VolumeName = "pv"
		s.onClaim(claim, bound)
		s.onPV(pv, nil)
		s.pass(10 * time.Minute)
		if actions := s.client.Actions(); len(actions) != 0 {
			s.Errorf("requests: %v", actions)
		}
	})
}

// Claims of one node cost two requests a round, however many they are, until their time has come.
func TestClaimsOfOneNodeShareALook(t *testing.T) {
	objects := []runtime.Object{fixture.Node("bare", nil)}
	for n := range 50 {
		objects = append(objects, waiting(n, "bare"))
	}
	inScene(t, func(s *scene) {
		s.pass(defaultInterval + defaultClaimGrace)
		if got := s.count("get nodes", "get csinodes"); got != 2*2 {
			s.Errorf("%d requests in the first two looks", got)
		}
		if got := s.count("update persistentvolumeclaims"); got != 0 {
			s.Errorf("%d writes before the grace was over", got)
		}
		s.pass(defaultInterval)
		if got := s.count("update persistentvolumeclaims"); got != 50 {
			s.Errorf("%d writes, want 50", got)
		}
	}, objects...)
}

// A round writes a hundred claims at most; the next one goes on with the others, also when none of the writes is seen.
func TestARoundIsBounded(t *testing.T) {
	var objects []runtime.Object
	for n := range 250 {
		objects = append(objects, waiting(n, "lost"))
	}
	inScene(t, func(s *scene) {
		s.pass(2*defaultInterval + defaultClaimGrace)
		for _, want := range []int{100, 200, 250, 250} { // what is not seen is read again, and found done
			if got := s.count("update persistentvolumeclaims"); got != want {
				s.Errorf("%d writes, want %d", got, want)
			}
			s.pass(defaultInterval)
		}
	}, objects...)
}

// Without an answer nothing is given up, and the time begins anew.
func TestNothingIsGivenUpWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	away := apierrors.NewInternalError(fmt.Errorf("etcd is away"))
	for name, resource := range map[string]string{"nodes cannot be read": "nodes", "csinodes cannot be read": "csinodes"} {
		t.Run(name, func(t *testing.T) {
			inScene(t, func(s *scene) {
				s.pass(defaultInterval + defaultClaimGrace)
				heal := s.fails("*", resource, away)
				s.pass(time.Hour)
				if s.selected("c-001") == "" || !s.hasPV("pv-001") {
					s.Error("something was given up")
				}
				heal()
				s.pass(defaultClaimGrace)
				if s.selected("c-001") == "" {
					s.Error("the time did not begin anew")
				}
				s.pass(2 * defaultInterval)
				if s.selected("c-001") != "" {
					s.Error("the claim was not given up in the end")
				}
			}, fixture.Node("bare", nil), waiting(1, "bare"), leftover(1, "lost"))
		})
	}
}

// A node that comes back in the very last moment keeps what it has.
func TestTheSecondLookCounts(t *testing.T) {
	inScene(t, func(s *scene) {
		// From now on every second look finds it there: the one before a write.
		s.pass(2*defaultInterval + defaultVolumeGrace - time.Second)
		looks := 0
		s.react("*", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if looks++; looks%2 == 1 {
				return false, nil, nil
			}
			node := fixture.Node("lost", map[string]string{"host": "lost"})
			if action.GetVerb() == "list" {
				return true, &corev1.NodeList{Items: []corev1.Node{*node}}, nil
			}
			return true, node, nil
		})
		s.react("get", "csinodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, fixture.CSINode("lost", testDriver, nil), nil
		})
		s.pass(time.Hour)
		if looks < 4 || !s.hasPV("pv-001") || !slices.Contains(liveClaim(s).Finalizers, wellknown.FinalizerProvisioningInProgress) {
			s.Errorf("something was given up after %d looks", looks)
		}
	}, marked(fixture.Claim("c").UID(testUID).For(testDriver), testUID, testDriver, "lost").Obj(), leftover(1, "lost"))
}

func liveClaim(s *scene) *corev1.PersistentVolumeClaim {
	s.Helper()
	claim, err := s.client.CoreV1().PersistentVolumeClaims("default").Get(s.Context(), "c", metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return claim
}

// What has changed behind the cache is not touched.
func TestAChangeBehindTheCacheWins(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(s *scene){
		"the policy of the volume": func(s *scene) {
			pv := leftover(1, "lost")
			pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
			s.update(pv)
		},
		"the volume was made anew": func(s *scene) {
			pv := leftover(1, "lost")
			pv.UID = "p-2"
			s.update(pv)
		},
		"the volume is attached": func(s *scene) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.attached = []*storagev1.VolumeAttachment{fixture.Attachment("a", "attacher", "pv-001", "n")}
		},
		"the volume changes in this moment": func(s *scene) {
			s.fails("delete", "persistentvolumes", apierrors.NewConflict(schema.GroupResource{Resource: "persistentvolumes"}, "pv-001", fmt.Errorf("changed")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inScene(t, func(s *scene) {
				change(s)
				s.pass(time.Hour)
				if !s.hasPV("pv-001") || s.count("patch persistentvolumes") != 0 {
					s.Error("the volume was given up")
				}
				if told := s.told(); told != "" {
					s.Errorf("told: %s", told)
				}
			}, leftover(1, "lost"))
		})
	}
}

func (s *scene) update(pv *corev1.PersistentVolume) {
	s.Helper()
	if _, err := s.client.CoreV1().PersistentVolumes().Update(s.Context(), pv, metav1.UpdateOptions{}); err != nil {
		s.Fatal(err)
	}
}

// A claim that was given another node behind the cache keeps that.
func TestAClaimWithAnotherNodeBehindTheCache(t *testing.T) {
	inScene(t, func(s *scene) {
		if _, err := s.client.CoreV1().PersistentVolumeClaims("default").Update(s.Context(), waiting(1, "up"), metav1.UpdateOptions{}); err != nil {
			s.Fatal(err)
		}
		s.pass(time.Hour)
		if got := s.selected("c-001"); got != "up" {
			s.Errorf("the claim is for node %q", got)
		}
		if told := s.told(); told != "" {
			s.Errorf("told: %s", told)
		}
	}, waiting(1, "lost"))
}

// The finalizer goes in the next round when it cannot go in this one, and the object is deleted once.
func TestAnAbandonedVolumeIsFinished(t *testing.T) {
	inScene(t, func(s *scene) {
		s.react("delete", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
			pv := leftover(1, "lost") // the API server keeps it for its finalizer
			pv.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			return true, nil, s.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), pv, "")
		})
		heal := s.fails("patch", "persistentvolumes", apierrors.NewInternalError(fmt.Errorf("away")))
		s.pass(2*defaultInterval + defaultVolumeGrace)
		heal()
		s.pass(2 * defaultInterval)
		if got := s.count("delete persistentvolumes"); got != 1 {
			s.Errorf("deleted %d times", got)
		}
		pv, err := s.client.CoreV1().PersistentVolumes().Get(s.Context(), "pv-001", metav1.GetOptions{})
		if err != nil || slices.Contains(pv.Finalizers, wellknown.FinalizerPV) {
			s.Errorf("the finalizer is still there: %v, %v", pv, err)
		}
		if told := s.told(); !strings.Contains(told, "Warning NodeGone") || !strings.Contains(told, "handle-pv-001") {
			s.Errorf("told: %s", told)
		}
	}, leftover(1, "lost"))
}

// Each term counts for itself: between two of them nobody has looked.
func TestATermRemembersNothingOfTheOneBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{T: t, client: fake.NewClientset(waiting(1, "lost")), recorder: record.NewFakeRecorder(10)}
		var err error
		if s.c, err = New(Config{Cache: s, Client: s.client, Recorder: s.recorder, Driver: testDriver}); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			end := s.run()
			s.onClaim(nil, waiting(1, "lost"))
			s.pass(defaultInterval + defaultClaimGrace)
			end()
		}
		if s.selected("c-001") == "" {
			t.Error("three short terms made a long one")
		}
		end := s.run()
		s.pass(2*defaultInterval + defaultClaimGrace)
		end()
		if s.selected("c-001") != "" {
			t.Error("the claim was not given up in the end")
		}
	})
}

func TestNewChecksItsConfig(t *testing.T) {
	t.Parallel()
	good := Config{Cache: &scene{}, Client: fake.NewClientset(), Recorder: record.NewFakeRecorder(1), Driver: testDriver}
	for name, edit := range map[string]func(*Config){
		"no cache":         func(c *Config) { c.Cache = nil },
		"no client":        func(c *Config) { c.Client = nil },
		"no recorder":      func(c *Config) { c.Recorder = nil },
		"no driver":        func(c *Config) { c.Driver = "" },
		"a negative pause": func(c *Config) { c.Interval = -1 },
		"a negative grace": func(c *Config) { c.VolumeGrace = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := good
			edit(&cfg)
			if _, err := New(cfg); err == nil {
				t.Error("no error")
			}
		})
	}
	if c, err := New(good); err != nil || c.cfg.Interval != defaultInterval || c.cfg.ClaimGrace != defaultClaimGrace || c.cfg.VolumeGrace != defaultVolumeGrace {
		t.Errorf("defaults: %v, %v", c, err)
	}
}

// An empty page is no answer while there are others.
func TestANodeOnALaterPageCounts(t *testing.T) {
	inScene(t, func(s *scene) {
		s.react("list", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			page := &corev1.NodeList{}
			if list, ok := action.(clienttesting.ListActionImpl); ok && list.ListOptions.Continue == "" {
				page.Continue = "more"
			} else {
				page.Items = []corev1.Node{*fixture.Node("late", map[string]string{"host": "lost"})}
			}
			return true, page, nil
		})
		s.pass(time.Hour)
		if !s.hasPV("pv-001") {
			s.Error("the volume was given up")
		}
	}, leftover(1, "lost"))
}
