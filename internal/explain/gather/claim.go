package gather

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/explain"
)

func (g *gatherer) claim(ctx context.Context) (x explain.Explanation, err error) {
	c, err := g.CoreV1().PersistentVolumeClaims(g.Namespace).Get(ctx, g.Name, metav1.GetOptions{})
	if err != nil {
		return x, err
	}
	f := explain.ClaimFacts{Claim: c}
	if f.Pods, err = g.podsOf(ctx, nil); err != nil {
		return x, err
	}
	classes, err := g.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if f.ClassesUnread = g.unread("storage classes", err); !f.ClassesUnread {
		f.Classes = pointers(classes.Items)
	}
	volumes, err := g.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if f.VolumesUnread = g.unread("volumes", err); !f.VolumesUnread {
		f.Volumes = pointers(volumes.Items)
	}
	attachments, err := g.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if !g.unread("volume attachments", err) {
		for _, a := range pointers(attachments.Items) {
			if of := a.Spec.Source.PersistentVolumeName; of != nil && *of == c.Spec.VolumeName {
				f.Attachments = append(f.Attachments, a)
			}
		}
	}
	f.About = g.on(ctx, c.UID)
	return explain.Claim(f), nil
}
