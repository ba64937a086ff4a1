package main

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	service       = "shop-webhook"  // what leads to the webhooks
	configuration = "shop-operator" // of the webhooks, both of them
	definition    = "shops.shop.wherry.dev"
	caKey         = "ca.crt"
)

// servingCertificate returns the webhooks' certificate, once the API server has been told to trust it. All
// replicas serve with the one in the Secret, which the first of them makes.
func servingCertificate(ctx context.Context, c client.Client, namespace string) (tls.Certificate, error) {
	secret, err := ensureSecret(ctx, c, namespace)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("the webhooks' secret: %w", err)
	}
	if err := errors.Join(
		trust(ctx, c, &admissionv1.MutatingWebhookConfiguration{}, configuration, secret.Data[caKey]),
		trust(ctx, c, &admissionv1.ValidatingWebhookConfiguration{}, configuration, secret.Data[caKey]),
		trust(ctx, c, &apiextensionsv1.CustomResourceDefinition{}, definition, secret.Data[caKey]),
	); err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
}

// ensureSecret returns the Secret that has the certificate, and makes it if there is none.
func ensureSecret(ctx context.Context, c client.Client, namespace string) (*corev1.Secret, error) {
	have := &corev1.Secret{}
	key := client.ObjectKey{Namespace: namespace, Name: service}
	if err := c.Get(ctx, key, have); !apierrors.IsNotFound(err) {
		return have, err
	}
	made, err := newSecret(namespace)
	if err != nil {
		return nil, err
	}
	if err := c.Create(ctx, made); !apierrors.IsAlreadyExists(err) {
		return made, err
	}
	return have, c.Get(ctx, key, have) // another replica was first
}

// newSecret makes a CA and a certificate for the service, good for a year; the CA's key is forgotten.
func newSecret(namespace string) (*corev1.Secret, error) {
	host := service + "." + namespace + ".svc"
	chain, key, err := cert.GenerateSelfSignedCertKey(host, nil, nil)
	if err != nil {
		return nil, err
	}
	leaf, ca := pem.Decode(chain)
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: service, Namespace: namespace},
		Type:       corev1.SecretTypeTLS,
		Data: map[string][]byte{
			corev1.TLSCertKey: pem.EncodeToMemory(leaf), corev1.TLSPrivateKeyKey: key, caKey: ca,
		},
	}, nil
}

// trust puts the CA wherever obj, which has the name, says how the webhooks are called.
func trust(ctx context.Context, c client.Client, obj client.Object, name string, ca []byte) error {
	if err := c.Get(ctx, client.ObjectKey{Name: name}, obj); err != nil {
		return err
	}
	old, ok := obj.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("a copy of %T is none", obj)
	}
	switch obj := obj.(type) {
	case *admissionv1.MutatingWebhookConfiguration:
		for i := range obj.Webhooks {
			obj.Webhooks[i].ClientConfig.CABundle = ca
		}
	case *admissionv1.ValidatingWebhookConfiguration:
		for i := range obj.Webhooks {
			obj.Webhooks[i].ClientConfig.CABundle = ca
		}
	case *apiextensionsv1.CustomResourceDefinition:
		obj.Spec.Conversion.Webhook.ClientConfig.CABundle = ca
	}
	return c.Patch(ctx, obj, client.MergeFrom(old))
}
