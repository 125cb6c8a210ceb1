{{/* A TOML value. Numbers reach templates as floats: 64.0 has to become 64 again. A JSON string is a TOML string. */}}
{{- define "fomo-stream.tomlValue" -}}
{{- if kindIs "slice" . -}}
[{{- range $i, $item := . }}{{ if $i }}, {{ end }}{{ include "fomo-stream.tomlValue" $item }}{{ end -}}]
{{- else if kindIs "map" . -}}
{{- $pairs := list -}}
{{- range $name, $value := . }}{{ $pairs = append $pairs (printf "%s = %s" (toJson $name) (include "fomo-stream.tomlValue" $value)) }}{{ end -}}
{ {{ join ", " $pairs }} }
{{- else if kindIs "string" . -}}
{{- toJson . -}}
{{- else if and (kindIs "float64" .) (eq (floor .) .) (lt . 9e15) (gt . -9e15) -}}
{{- printf "%d" (int64 .) -}}
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- end -}}

{{/* Settings as lines of TOML, without those that are null or empty. */}}
{{- define "fomo-stream.tomlPairs" -}}
{{- range $name, $value := . }}
{{- if not (or (kindIs "invalid" $value) (eq (toString $value) "")) }}
{{ $name }} = {{ include "fomo-stream.tomlValue" $value }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The client settings that follow from kafka.tls and kafka.sasl; secrets come by the environment. */}}
{{- define "fomo-stream.security" -}}
{{- $tls := .Values.kafka.tls -}}{{- $sasl := .Values.kafka.sasl -}}
{{- if and $tls.enabled $sasl.enabled }}
security.protocol: SASL_SSL
{{- else if $tls.enabled }}
security.protocol: SSL
{{- else if $sasl.enabled }}
security.protocol: SASL_PLAINTEXT
{{- end }}
{{- if $sasl.enabled }}
sasl.mechanism: {{ $sasl.mechanism }}
{{- end }}
{{ include "fomo-stream.certificates" (list "tls" $tls) }}
{{- end -}}

{{/* The settings of a client for its certificates. Arguments: the folder of the Secrets, the values that name them. */}}
{{- define "fomo-stream.certificates" -}}
{{- $folder := index . 0 -}}{{- $tls := index . 1 -}}
{{- if $tls.ca.existingSecret }}
ssl.ca.location: /etc/fomo/{{ $folder }}/ca/{{ $tls.ca.key }}
{{- end }}
{{- if $tls.client.existingSecret }}
ssl.certificate.location: /etc/fomo/{{ $folder }}/client/{{ $tls.client.certificateKey }}
ssl.key.location: /etc/fomo/{{ $folder }}/client/{{ $tls.client.privateKeyKey }}
{{- end }}
{{- end -}}

{{/* The client settings that follow from `registry`. */}}
{{- define "fomo-stream.registry" -}}
{{- with .Values.registry -}}
{{- if .url }}
url: {{ .url | quote }}
{{- if .auth.tokenKey }}
bearer.auth.credentials.source: STATIC_TOKEN
{{- end }}
{{ include "fomo-stream.certificates" (list "registry" .tls) }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* The configuration file of the service. `wait` is left out: the image has a variable for it, which would win. */}}
{{- define "fomo-stream.toml" -}}
{{- include "fomo-stream.tomlPairs" (merge (dict "group" (include "fomo-stream.group" .)) (omit .Values.settings "wait" "topics")) }}
{{- range $name, $section := .Values.settings.topics }}

[topics.{{ toJson $name }}]
{{- include "fomo-stream.tomlPairs" (default dict $section) }}
{{- end }}
{{- include "fomo-stream.clientTables" . }}
{{- end -}}

{{/* The configuration file of notify: what it shares with the service, and its own settings. */}}
{{- define "fomo-stream.notifyToml" -}}
{{- $shared := pick .Values.settings "alerts" "bootstrap" "result-field" "key" "log-level" "max-record-bytes" -}}
{{- $own := dict "group" (printf "%s-notify" (include "fomo-stream.group" . | replace "{topic}" "topics")) -}}
{{- include "fomo-stream.tomlPairs" (merge (dict) (default dict .Values.notify.settings) $own $shared) }}
{{- include "fomo-stream.clientTables" . }}
{{- end -}}

{{/* The tables of the clients, of a configuration file. */}}
{{- define "fomo-stream.clientTables" -}}
{{- $kafka := merge (dict) (default dict .Values.kafka.settings) (include "fomo-stream.security" . | fromYaml) }}
{{- $registry := merge (dict) (default dict .Values.registry.settings) (include "fomo-stream.registry" . | fromYaml) }}
{{- range $table, $client := dict "kafka" $kafka "registry" $registry }}
{{- if $client }}

[{{ $table }}]
{{- range $name, $value := $client }}
{{- $text := $value }}
{{- if not (kindIs "string" $value) }}{{ $text = include "fomo-stream.tomlValue" $value }}{{ end }}
{{ toJson $name }} = {{ toJson $text }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Environment of the service. All of it but the name of the instance is also right for checks. */}}
{{- define "fomo-stream.env" -}}
- name: FOMO_CONFIG
  value: /etc/fomo/config/fomo.toml
- name: FOMO_HTTP_HOST
  value: {{ default "0.0.0.0" .Values.service.host | quote }}
- name: FOMO_HEALTH_PORT
  value: {{ .Values.service.port | int | quote }}
- name: FOMO_WAIT
  value: {{ kindIs "invalid" .Values.settings.wait | ternary true .Values.settings.wait | quote }}
{{- if .Values.gpu.enabled }}
- name: FOMO_DEVICE
  value: cuda
{{- end }}
{{- with .Values.kafka.sasl }}
{{- if .enabled }}
- name: FOMO_KAFKA_SASL_USERNAME
  {{- if .username }}
  value: {{ .username | quote }}
  {{- else }}
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret | quote }}
      key: {{ .usernameKey | quote }}
  {{- end }}
- name: FOMO_KAFKA_SASL_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret | quote }}
      key: {{ .passwordKey | quote }}
{{- end }}
{{- end }}
{{- range $client, $tls := dict "KAFKA" .Values.kafka.tls "REGISTRY" .Values.registry.tls }}
{{- with $tls.client }}
{{- if and .existingSecret .passwordKey }}
- name: FOMO_{{ $client }}_SSL_KEY_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret | quote }}
      key: {{ .passwordKey | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.registry.auth }}
{{- if and .existingSecret .tokenKey }}
- name: FOMO_REGISTRY_BEARER_AUTH_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret | quote }}
      key: {{ .tokenKey | quote }}
{{- else if .existingSecret }}
# the client wants both in one text, which Kubernetes makes of these two variables
- name: REGISTRY_USERNAME
  {{- if .username }}
  value: {{ .username | quote }}
  {{- else }}
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret | quote }}
      key: {{ .usernameKey | quote }}
  {{- end }}
- name: REGISTRY_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret | quote }}
      key: {{ .passwordKey | quote }}
- name: FOMO_REGISTRY_BASIC_AUTH_USER_INFO
  value: $(REGISTRY_USERNAME):$(REGISTRY_PASSWORD)
{{- end }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "fomo-stream.volumeMounts" -}}
- name: config
  mountPath: /etc/fomo/config
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- range $folder, $tls := dict "tls" .Values.kafka.tls "registry" .Values.registry.tls }}
{{- range $role := list "ca" "client" }}
{{- if (get $tls $role).existingSecret }}
- name: {{ $folder }}-{{ $role }}
  mountPath: /etc/fomo/{{ $folder }}/{{ $role }}
  readOnly: true
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Arguments: the root, the name of the ConfigMap with the configuration file. */}}
{{- define "fomo-stream.volumes" -}}
{{- $config := index . 1 -}}
{{- with index . 0 -}}
- name: config
  configMap:
    name: {{ $config | quote }}
- name: tmp
  emptyDir:
    sizeLimit: 256Mi
{{- range $folder, $tls := dict "tls" .Values.kafka.tls "registry" .Values.registry.tls }}
{{- range $role := list "ca" "client" }}
{{- with get $tls $role }}
{{- if .existingSecret }}
- name: {{ $folder }}-{{ $role }}
  secret:
    secretName: {{ .existingSecret | quote }}
    defaultMode: 0440
    items:
      {{- range compact (list .key .certificateKey .privateKeyKey) }}
      - key: {{ . | quote }}
        path: {{ . | quote }}
      {{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* Where pods go: GPU nodes need their own labels and tolerations too. */}}
{{- define "fomo-stream.placement" -}}
{{- $onNodes := .Values.nodeSelector -}}{{- $tolerations := .Values.tolerations -}}
{{- if .Values.gpu.enabled -}}
{{- $onNodes = merge (dict) (default dict .Values.nodeSelector) (default dict .Values.gpu.nodeSelector) -}}
{{- $tolerations = concat (default list .Values.tolerations) (default list .Values.gpu.tolerations) -}}
{{- end -}}
{{- with $onNodes }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- if and .Values.gpu.enabled .Values.gpu.runtimeClassName }}
runtimeClassName: {{ .Values.gpu.runtimeClassName | quote }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
The pod of a check, which runs once with the settings of the service. Arguments: the root, the name of the container, the
name of the ConfigMap, its command and arguments. It has the processors of an instance, because --threads depends on them.
*/}}
{{- define "fomo-stream.checkPod" -}}
{{- $name := index . 1 -}}{{- $config := index . 2 -}}{{- $command := index . 3 -}}
{{- with index . 0 -}}
restartPolicy: Never
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
containers:
  - name: {{ $name }}
    image: {{ include "fomo-stream.image" . | quote }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    {{- toYaml $command | nindent 4 }}
    {{- with .Values.securityContext }}
    securityContext:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    env:
      {{- include "fomo-stream.env" . | nindent 6 }}
    resources:
      requests:
        cpu: 100m
        memory: 512Mi
      {{- with dig "limits" "cpu" "" (default dict .Values.resources) }}
      limits:
        cpu: {{ . | quote }}
      {{- end }}
    volumeMounts:
      {{- include "fomo-stream.volumeMounts" . | nindent 6 }}
volumes:
  {{- include "fomo-stream.volumes" (list . $config) | nindent 2 }}
{{- end -}}
{{- end -}}

{{- define "fomo-stream.resources" -}}
{{- $resources := deepCopy (default dict .Values.resources) -}}
{{- if .Values.gpu.enabled -}}
{{- $gpu := dict .Values.gpu.resourceName (int .Values.gpu.count) -}}
{{- $_ := set $resources "limits" (merge (dict) $gpu (default dict $resources.limits)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
